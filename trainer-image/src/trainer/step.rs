//! One step.

use std::time::Instant;

use roundhouse_elastic::{Batch, Event, Permutation};
use roundhouse_member::faults::{self, Point};
use roundhouse_member::report::StepReport;
use roundhouse_member::sections::{Section, Sections};
use roundhouse_member::world::Standing;

use super::{LastStep, Trainer};
use crate::failure::Failure;

impl Trainer<'_> {
    /// One optimizer step of the whole world, or what is due in its place: an evaluation, the end. Until the
    /// update every error leaves the weights as they were; the update itself is local and waits for no peer.
    pub(super) fn step(&mut self) -> Result<Event, Failure> {
        if self.is_evaluation_due() {
            return self.evaluate();
        }
        let mark = self.member.held.mark;
        let Some(batch) = self.plan.course.batch_at(&mark) else {
            self.finish()?;
            return Ok(Event::Finished);
        };
        let standing = self.member.begin_step()?;
        let rank = self.member.world()?.rank();
        let started = Instant::now();
        let mut sections = Sections::default();
        sections.time(Section::Data, faults::slow_down);
        let learning_rate = self.plan.rates.rate(mark.samples) * self.plan.scaling.factor(&mark);

        let local_loss = self.gradients(&batch, &mut sections)?;
        let gradient_norm = sections.time(Section::Optimizer, || {
            self.work.model.parameters().gradient_norm()
        })?;
        let standing = Standing {
            finite: gradient_norm.is_finite(),
            own_time: self.last_step.own_time,
            ..standing
        };
        faults::point(Point::Agree, rank, batch.step);
        let end = sections.time(Section::Communication, || {
            self.member.end_step(local_loss, &standing)
        })?;
        let step = batch.step;
        let loss = end.loss_sum / batch.num_samples() as f64;
        if !end.agreement.all_finite {
            return Err(self.diverged(&batch, local_loss, loss, gradient_norm)?);
        }
        faults::point(Point::Update, rank, step);
        sections.time(Section::Optimizer, || {
            let parameters = self.work.model.parameters_mut();
            self.work.optimizer.step(parameters, learning_rate, step)
        })?;
        self.member.count(&batch);
        faults::point(Point::Commit, rank, step);

        let reporter = &mut *self.member.reporter;
        reporter.compare(&end.own_seconds, self.last_step.unevenness);
        let replicas = self.replicas.as_ref();
        self.last_step = LastStep {
            own_time: sections.own_time(),
            unevenness: replicas.and_then(|replicas| replicas.unevenness(batch.num_samples())),
        };

        let tensors = &self.work.tensors;
        self.member.keep(&batch, loss, &end.saving, tensors)?;
        let mark = &self.member.held.mark;
        self.member.reporter.commit(&StepReport {
            step,
            epoch: self.plan.course.position_at(mark.samples).epoch,
            num_samples: batch.num_samples(),
            loss,
            gradient_norm,
            learning_rate,
            duration: started.elapsed(),
            sections,
        });
        if end.agreement.all_leave {
            // What little time is left is for the state.
            self.member.save_before_leaving(tensors)?;
        }
        Ok(Event::Boundary {
            agreed_generation: end.agreement.newest_generation,
            all_leave: end.agreement.all_leave,
        })
    }

    /// Leaves the mean gradient of the batch in the model; returns the sum of the losses of this rank's samples.
    fn gradients(&mut self, batch: &Batch, sections: &mut Sections) -> Result<f64, Failure> {
        let world = self.member.world()?;
        let order = self.order(batch);
        let Some(replicas) = &mut self.replicas else {
            return Err(Failure::internal("a step before its world was formed"));
        };
        let model = self.work.model.as_mut();
        replicas.gradients(world, model, &self.work.data.train, &order, batch, sections)
    }

    /// Why a step cannot be committed. The gradient that the ranks have summed does not say whose was not finite,
    /// so each computes its own once more, for itself.
    fn diverged(
        &mut self,
        batch: &Batch,
        local_loss: f64,
        loss: f64,
        gradient_norm: f64,
    ) -> Result<Failure, Failure> {
        let world = self.member.world()?;
        let order = self.order(batch);
        let mut is_own = !local_loss.is_finite();
        if let (Some(replicas), false) = (&mut self.replicas, is_own) {
            let model = self.work.model.as_mut();
            replicas.own_gradients(world, model, &self.work.data.train, &order, batch)?;
            is_own = !model.parameters().gradient_norm()?.is_finite();
        }
        Ok(Failure::Diverged {
            step: batch.step,
            loss,
            gradient_norm,
            ranks: world.ranks_that(is_own)?,
        })
    }

    fn order(&self, batch: &Batch) -> Permutation {
        Permutation::new(
            self.plan.course.num_samples(),
            self.work.config.seed,
            batch.epoch,
        )
    }
}
