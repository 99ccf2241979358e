//! One step.

use std::time::Instant;

use roundhouse_elastic::numerics::{Finite, Verdict};
use roundhouse_elastic::{Batch, Event, Permutation, straggler};
use roundhouse_member::faults::{self, Point};
use roundhouse_member::report::StepReport;
use roundhouse_member::sections::{Section, Sections};
use roundhouse_member::world::{Standing, StepEnd};

use super::{LastStep, Trainer};
use crate::clip::{self, Measured};
use crate::failure::Failure;
use crate::gradients::{Gradients, gradients};
use crate::sync::Finished;
use crate::update::{Rate, Signals};

impl Trainer<'_> {
    /// One optimizer step of the whole world, or what is due in its place: an evaluation, the end. Until the
    /// update every error leaves the weights as they were; the update itself is local and waits for no peer.
    pub(super) fn step(&mut self) -> Result<Event, Failure> {
        let result = self.try_step();
        if result.is_err() {
            self.tracer.step_fails();
        }
        result.map_err(|failure| match self.member.world() {
            Ok(world) => failure.on_rank(world.rank()),
            Err(_) => failure,
        })
    }

    fn try_step(&mut self) -> Result<Event, Failure> {
        if self.is_evaluation_due() {
            self.tracer.steps_end();
            return self.evaluate();
        }
        let mark = self.member.held.mark;
        let Some(batch) = self.plan.course.batch_at(&mark) else {
            self.tracer.steps_end();
            self.finish()?;
            return Ok(Event::Finished);
        };
        self.tracer.step_begins();
        let mut standing = self.member.begin_step()?;
        standing.own_time = self.last_step.own_time;
        let loss_factor = self.loss_factor(&mark);
        let rank = self.member.world()?.rank();
        let started = Instant::now();
        let mut sections = Sections::default();
        sections.time(Section::Data, faults::slow_down);
        let rate = Rate {
            learning_rate: self.plan.rates.rate(mark.samples) * self.plan.scaling.factor(&mark),
            // Bias corrections count the updates that there were.
            step: batch.step - mark.skips.total,
        };

        let Gradients {
            local_loss,
            finished,
        } = self.gradients(&batch, &mut standing, &mut sections)?;
        let Measured {
            norm,
            is_finite,
            divisor,
        } = sections.time(Section::Optimizer, || {
            let most = self.work.config.optimizer.max_grad_norm;
            clip::measure(self.work.task.parameters(), loss_factor, most)
        })?;
        standing.finite = is_finite;
        faults::point(Point::Agree, rank, batch.step);
        let end = sections.time(Section::Communication, || {
            self.agree(local_loss, finished, standing)
        })?;
        let step = batch.step;
        let loss = end.loss_sum / batch.num_samples() as f64;
        let finite = Finite {
            loss: loss.is_finite(),
            gradient: end.agreement.all_finite,
        };
        let verdict = self.policy().verdict(finite, mark.skips);
        faults::point(Point::Update, rank, step);
        match verdict {
            Verdict::Fail => return Err(self.diverged(&batch, local_loss, loss, norm)?),
            Verdict::Skip => {}
            Verdict::Update => sections.time(Section::Optimizer, || {
                let parameters = self.work.task.parameters_mut();
                let signals = Signals {
                    skip: None,
                    divisor: divisor.as_ref(),
                };
                self.work.update.apply(parameters, rate, signals)
            })?,
        }
        self.count(&batch, verdict, finite);
        faults::point(Point::Commit, rank, step);

        self.learn(&batch, &end, &sections)?;
        let tensors = &self.work.tensors;
        self.member.keep(&batch, loss, &end.saving, tensors)?;
        let mark = &self.member.held.mark;
        self.member.reporter.commit(&StepReport {
            step,
            epoch: self.plan.course.position_at(mark.samples).epoch,
            num_samples: batch.num_samples(),
            loss,
            gradient_norm: norm,
            learning_rate: rate.learning_rate,
            skips: mark.skips,
            loss_scale: mark.loss_scale,
            duration: started.elapsed(),
            sections,
        });
        if end.agreement.all_leave {
            // What little time is left is for the state.
            self.tracer.steps_end();
            self.member.save_before_leaving(tensors)?;
        }
        self.tracer.step_ends();
        Ok(Event::Boundary {
            agreed_generation: end.agreement.newest_generation,
            all_leave: end.agreement.all_leave,
        })
    }

    /// What the step has shown: which rank is slow, what was read, how long the next step may take.
    fn learn(&mut self, batch: &Batch, end: &StepEnd, sections: &Sections) -> Result<(), Failure> {
        let reporter = &mut *self.member.reporter;
        let source = &self.work.train;
        reporter.data_read(source.num_skipped(), source.num_by_part());
        reporter.compare(&end.own_seconds, self.last_step.unevenness);
        let world = self.member.world()?;
        let longest = self.member.longest_step();
        let timeout = Some(self.launch.timeouts.of_step(Some(longest)));
        if let (Some(group), Some(new)) = (
            world.group(),
            timeout.filter(|_| timeout != self.last_step.timeout),
        ) {
            group.set_timeout(new);
        }
        let most = self.work.config.micro_batch_size;
        self.last_step = LastStep {
            timeout,
            own_time: sections.own_time(),
            unevenness: straggler::unevenness(batch.num_samples(), world.size(), most),
        };
        Ok(())
    }

    /// Leaves the mean gradients of the batch in the task. What this rank has to tell the others is asked as late as
    /// it can be.
    fn gradients(
        &mut self,
        batch: &Batch,
        standing: &mut Standing,
        sections: &mut Sections,
    ) -> Result<Gradients, Failure> {
        let order = self.order(batch.epoch);
        let loss_factor = self.loss_factor(&self.member.held.mark);
        let next = self
            .plan
            .course
            .batch_at(&self.member.held.mark.after(batch.num_samples()));
        let next = next.map(|next| (self.order(next.epoch), next));
        let Self {
            member,
            work,
            sync,
            tracer,
            ..
        } = self;
        let Some(sync) = sync else {
            return Err(Failure::internal("a step before its world was formed"));
        };
        let mut inputs = work.inputs(batch, &order);
        inputs.loss_factor = loss_factor;
        inputs.next = next.as_ref().map(|(order, next)| (next, order));
        let (world, mut ears) = member.world_and_ears()?;
        let numbers = |local_loss| {
            standing.leaving = ears.is_leaving();
            standing.to_numbers(world.rank(), local_loss)
        };
        gradients(&mut inputs, sync.as_mut(), world, numbers, sections, tracer)
    }

    /// What the ranks agree on, from what has come with the gradients or in a collective of its own.
    fn agree(
        &mut self,
        local_loss: f64,
        finished: Finished,
        mut standing: Standing,
    ) -> Result<StepEnd, Failure> {
        let Finished {
            numbers, loss_sum, ..
        } = finished;
        let mut end = if let Some(numbers) = numbers {
            self.member.end_step_with(&numbers, standing.finite)?
        } else {
            standing.leaving = self.member.world_and_ears()?.1.is_leaving();
            self.member.end_step(local_loss, &standing)?
        };
        if let Some(loss_sum) = loss_sum {
            end.loss_sum = loss_sum;
        }
        Ok(end)
    }

    pub(super) fn order(&self, epoch: u64) -> Permutation {
        self.plan.terms.order(epoch)
    }
}
