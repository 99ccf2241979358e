//! Steps that the device commits: the host launches step k + 1 before it reads the result of step
//! k, so the device never waits for the host.
//!
//! ```text
//! host    launch k | launch k+1 | read k | launch k+2 | read k+1 | ...
//! device           | gradients k, agree k, update k   | gradients k+1, ...
//! ```
//! The vote of a step ends in a flag on the device, and the device updates the weights only if the
//! flag is
//! 0. The host reads the same flag, so it counts exactly the steps that the device has applied,
//!    even if the group has failed since. The flag of step k enters the flag of step k + 1 on all
//!    ranks: after a step without an update, no later step has one. [`roundhouse_elastic::lag`]
//!    decides in which cases the host reads the end of a step before it launches the next one.

use roundhouse_elastic::lag::{Asked, Expected};
use roundhouse_elastic::{Batch, Event, TrainingPosition};
use roundhouse_member::faults::{self, Point};
use roundhouse_member::world::StepOutcome;
use roundhouse_report::Section;

use super::step::Begun;
use super::step_vote::{Agreement, Read, StepVote};
use super::{Trainer, host_syncs};
use crate::clip::{self, Norms};
use crate::failure::Failure;
use crate::gradients::{Gradients, OwnLoss};
use crate::stopwatch::Stopwatch;
use crate::update::Signals;

/// A launched step whose end the host has not read.
#[derive(Debug)]
pub(super) struct Pending {
    begun: Begun,
    agreement: Agreement,
    /// The training position after the step, if it is committed.
    after: TrainingPosition,
    may_overlap_with_next: bool,
}

impl Trainer<'_> {
    /// The training position at which the next step begins.
    pub(super) fn position_ahead(&self) -> TrainingPosition {
        let pending = self.pending.as_ref();
        pending.map_or(self.member.local_state.position, |pending| pending.after)
    }

    /// Launches a step, and then reads the end of the previous step, if there is one. Returns
    /// `None` if the loop continues with another step.
    pub(super) fn step_ahead(
        &mut self,
        batch: Batch,
        position: &TrainingPosition,
    ) -> Result<Option<Event>, Failure> {
        if let Some(before) = &self.pending {
            before.agreement.check(self.member.world()?)?;
        }
        // The first step of a generation may wait: it tunes kernels and opens connections.
        let launched = if self.last_step.ended.is_some() {
            host_syncs::watched(self.host_syncs, || self.launch(batch, position))?
        } else {
            self.launch(batch, position)?
        };
        let may_overlap = launched.may_overlap_with_next;
        let before = self.pending.replace(launched);
        let before = before.map(|before| self.settle(before)).transpose();
        if before.is_err() {
            // The device does not update the weights in the launched step, and its collectives may
            // hang. So do not read its end.
            self.pending = None;
        }
        let before = before?;
        let stops = match &before {
            Some(end) => self.asked(end)?.stops(),
            None => false,
        };
        if may_overlap && !stops {
            if let Some(end) = before {
                let _ = self.act(&end)?;
            }
            return Ok(None);
        }
        let last = self.pending.take();
        let Some(last) = last.map(|last| self.settle(last)).transpose()? else {
            return Err(Failure::internal("the launched step is missing"));
        };
        let end = match before {
            Some(before) => both(&before, last),
            None => last,
        };
        self.act(&end).map(Some)
    }

    /// Launches all work of a step. The host waits only for the data.
    fn launch(&mut self, batch: Batch, position: &TrainingPosition) -> Result<Pending, Failure> {
        let device = self.work.task.parameters().device();
        let stopwatch = Stopwatch::on_device(device)?;
        let (expected, after) = self.expected(&batch, position);
        let (mut begun, mut rank_vote) = self.begin(batch, position, stopwatch)?;
        let Gradients {
            local_loss: OwnLoss::Device(Some(loss)),
            finished,
        } = self.gradients(&mut begun, position, None)?
        else {
            return Err(Failure::internal("the loss is not on the device"));
        };
        let (rank, step) = (self.member.world()?.rank(), begun.batch.step);
        let loss_factor = self.loss_factor(position);
        let Norms { norms, divisor } = begun.stopwatch.time(Section::Optimizer, || {
            let most = self.work.config.optimizer.max_grad_norm;
            clip::norms(self.work.task.parameters(), loss_factor, most)
        })?;
        faults::point(Point::Agree, rank, step);
        self.member.complete_vote(&mut rank_vote)?;
        let vote = StepVote {
            rank_vote: &rank_vote,
            loss: &loss,
            norms: &norms,
            loss_sum: finished.loss_sum.as_ref(),
            digest: finished.digest.as_ref(),
            dropped: self
                .pending
                .as_ref()
                .map(|before| before.agreement.found_inf()),
        };
        let world = self.member.world()?;
        let agreement = begun
            .stopwatch
            .time(Section::Communication, || Agreement::launch(&vote, world))?;
        faults::point(Point::Update, rank, step);
        let signals = Signals {
            skip: Some(agreement.found_inf()),
            divisor: divisor.as_ref(),
        };
        self.apply(&mut begun, signals)?;
        self.complete(&mut begun)?;
        faults::point(Point::Commit, rank, step);
        self.tracer.step_ends();
        Ok(Pending {
            begun,
            agreement,
            after,
            may_overlap_with_next: expected.may_overlap_with_next(),
        })
    }

    /// The properties of a step that are known before it begins, and the training position after
    /// it.
    fn expected(&self, batch: &Batch, position: &TrainingPosition) -> (Expected, TrainingPosition) {
        let mut after = position.after(batch.num_samples());
        after.skips = position.skips.after(false);
        let expected = Expected {
            is_first: self.last_step.ended.is_none(),
            may_be_skipped: self.policy().may_skip(),
            is_saved: self.member.reads_state_at(batch.step),
            is_evaluated: self.is_evaluated_at(&after),
            is_last: self.plan.data_schedule.batch_at(&after).is_none(),
        };
        (expected, after)
    }

    /// Waits for the end of a step, and counts the step if the device has updated the weights.
    fn settle(&mut self, step: Pending) -> Result<StepOutcome, Failure> {
        let read = self.read(&step)?;
        let end = self.member.end_step_from_sums(&read.sums)?;
        self.close(step, &read, end)
    }

    /// Must be called after an error while launching a step. The previous step counts if the device
    /// has updated the weights, even if the process group has failed since.
    pub(super) fn settle_what_is_done(&mut self) {
        let Some(step) = self.pending.take() else {
            return;
        };
        if let Ok(read) = self.read(&step)
            && read.is_good
            && let Ok(end) = self.member.outcome_from_sums(&read.sums)
        {
            // If this fails, the ranks compare their states when the next generation forms.
            let _ = self.close(step, &read, end);
        }
    }

    fn read(&self, step: &Pending) -> Result<Read, Failure> {
        let end = step.begun.end()?;
        step.agreement.read(end, self.member.world()?)
    }

    /// Completes a step after the host has read its end.
    fn close(
        &mut self,
        step: Pending,
        read: &Read,
        mut end: StepOutcome,
    ) -> Result<StepOutcome, Failure> {
        let Pending { begun, .. } = step;
        end.loss_sum = read.loss_sum.unwrap_or(end.loss_sum);
        let judged = self.judge(&begun.batch, &end, read.local_loss, read.gradient_norm)?;
        if judged.updates() != read.is_good {
            return Err(Failure::internal(
                "the device's update does not match the ranks' vote",
            ));
        }
        self.conclude(begun, &end, &judged)?;
        Ok(end)
    }

    fn asked(&self, end: &StepOutcome) -> Result<Asked, Failure> {
        Ok(Asked {
            saves: self.member.has_to_save(&end.saving)?,
            switches: end.agreement.newest_generation > self.member.current_generation(),
            leaves: end.agreement.all_leave,
        })
    }
}

/// Merges the outcomes of two steps, the later of which was launched before the host read the
/// outcome of the earlier one. The requests of both outcomes are handled now.
fn both(before: &StepOutcome, last: StepOutcome) -> StepOutcome {
    let mut end = last;
    let (early, late) = (&before.agreement, &mut end.agreement);
    late.newest_generation = late.newest_generation.max(early.newest_generation);
    late.all_leave |= early.all_leave;
    end.saving.is_time |= before.saving.is_time;
    end
}
