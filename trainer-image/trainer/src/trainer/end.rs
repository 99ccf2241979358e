//! The end of a step after the host has read the vote: whether the step counts, its report, and the
//! actions after it.

use std::time::Instant;

use roundhouse_elastic::numerics::{Finite, Verdict};
use roundhouse_elastic::{Batch, Event, straggler};
use roundhouse_member::faults;
use roundhouse_member::world::StepOutcome;
use roundhouse_report::{Section, Sections, StepReport};

use super::step::Begun;
use super::{LastStep, Trainer};
use crate::failure::Failure;
use crate::sync::{Commit, explain};

/// The verdict on a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judged {
    /// Mean loss over the global batch.
    pub(super) loss: f64,
    gradient_norm: f64,
    pub(super) finite: Finite,
    pub(super) verdict: Verdict,
}

impl Judged {
    /// Whether the step changes the weights.
    pub(super) fn updates(&self) -> bool {
        self.verdict == Verdict::Update
    }
}

impl Trainer<'_> {
    /// Decides whether a step counts. An error means that training fails.
    pub(super) fn judge(
        &mut self,
        batch: &Batch,
        end: &StepOutcome,
        local_loss: f64,
        gradient_norm: f64,
    ) -> Result<Judged, Failure> {
        let loss = end.loss_sum / batch.num_samples() as f64;
        let finite = Finite {
            loss: loss.is_finite(),
            gradient: end.agreement.all_finite,
        };
        let verdict = self
            .policy()
            .verdict(finite, self.member.local_state.position.skips);
        if verdict == Verdict::Fail {
            return Err(self.diverged(batch, local_loss, loss, gradient_norm)?);
        }
        Ok(Judged {
            loss,
            gradient_norm,
            finite,
            verdict,
        })
    }

    /// Counts the step and reports it.
    pub(super) fn conclude(
        &mut self,
        begun: Begun,
        end: &StepOutcome,
        judged: &Judged,
    ) -> Result<(), Failure> {
        let Begun {
            batch,
            rate,
            started,
            stopwatch,
            reported_unevenness,
        } = begun;
        let Judged {
            loss,
            gradient_norm,
            finite,
            verdict,
        } = *judged;
        // Count the step and note its ledger line first and together, so that an error below cannot
        // lose one of them.
        let factor = self.loss_factor(&self.member.local_state.position);
        self.count(&batch, verdict, finite);
        self.member.note(&batch, loss, &end.saving);
        self.uncounted_updates = self.uncounted_updates.saturating_sub(1);
        self.prepare_sync(verdict, factor)?;
        if faults::flips_bit(self.member.world()?.rank(), batch.step) {
            self.work.tensors.flip_a_bit()?;
        }
        let mut sections = stopwatch.read()?;
        if let Some(sync) = &mut self.sync {
            let waited = sync.waited();
            let world = self.member.world()?;
            let waited = waited.map_err(|error| explain(world, error))?;
            sections.waited(Section::Backward, waited);
        }
        self.member
            .reporter
            .compare(&end.compute_seconds, reported_unevenness);
        // Steps overlap, so a step is timed from the end of the previous step.
        let since = self
            .last_step
            .ended
            .map_or(started, |ended| ended.max(started));
        self.learn(&batch, &sections)?;
        let position = &self.member.local_state.position;
        self.member.reporter.commit(&StepReport {
            step: batch.step,
            epoch: self.plan.data_schedule.position_at(position.samples).epoch,
            num_samples: batch.num_samples(),
            loss,
            gradient_norm,
            learning_rate: rate.learning_rate,
            skips: position.skips,
            loss_scale: position.loss_scale,
            duration: since.elapsed(),
            sections,
        });
        Ok(())
    }

    /// Carries out the requests of a step's outcome: saves, and leaves.
    pub(super) fn act(&mut self, end: &StepOutcome) -> Result<Event, Failure> {
        let tensors = &self.work.tensors;
        self.member.save_on(&end.saving, tensors)?;
        if end.agreement.all_leave {
            // A rank that leaves has little time, and needs it to save the state.
            self.tracer.steps_end();
            self.member.save_before_leaving(tensors)?;
        }
        Ok(Event::Boundary {
            agreed_generation: end.agreement.newest_generation,
            all_leave: end.agreement.all_leave,
        })
    }

    /// Reports the data that was read, and sets the timeout of the next step.
    fn learn(&mut self, batch: &Batch, sections: &Sections) -> Result<(), Failure> {
        let source = &self.work.train;
        let reporter = &mut *self.member.reporter;
        reporter.data_read(source.num_skipped(), source.num_by_part());
        let world = self.member.world()?;
        let longest = self.member.longest_step();
        let timeouts = &self.launch.timeouts;
        let timeout = Some(match self.commit {
            Commit::Host => timeouts.of_step(longest),
            Commit::Device => timeouts.of_step_launched_ahead(longest),
        });
        let parameters = self.work.task.parameters();
        let (_, num_shares) = parameters.share_of(world.rank(), world.size());
        if let Some(new) = timeout.filter(|_| timeout != self.last_step.timeout) {
            self.set_timeout(new)?;
        }
        let most = self.work.config.micro_batch_size;
        self.last_step = LastStep {
            timeout,
            own_time: sections.own_time(),
            unevenness: straggler::unevenness(batch.num_samples(), num_shares, most),
            ended: Some(Instant::now()),
        };
        Ok(())
    }
}
