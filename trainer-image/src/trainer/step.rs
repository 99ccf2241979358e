//! One step.

use std::time::Instant;

use roundhouse_elastic::{Event, Permutation};

use super::Trainer;
use crate::failure::Failure;
use crate::faults::{self, Point};
use crate::report::StepReport;
use crate::sections::{Section, Sections};
use crate::world::Standing;

impl Trainer<'_> {
    /// One optimizer step of the whole world, or what is due in its place: an evaluation, the end. Until the
    /// update every error leaves the weights as they were; the update itself is local and waits for nobody.
    pub(super) fn step(&mut self) -> Result<Event, Failure> {
        if self.is_evaluation_due() {
            return self.evaluate();
        }
        let Some(batch) = self.course.batch_at(&self.mark) else {
            self.finish()?;
            return Ok(Event::Finished);
        };
        if let Some(peers) = &self.peers {
            peers.interrupter.step_begins();
        }
        let saving = self.saving()?;
        let newest_seen = self.newest_for_all();
        let Some(replicas) = &mut self.replicas else {
            return Err(Failure::Internal(
                "a step before its world was formed".to_owned(),
            ));
        };
        let started = Instant::now();
        let mut sections = Sections::default();
        sections.time(Section::Data, faults::slow_down);
        let learning_rate = self.rates.rate(self.mark.samples) * self.scaling.factor(&self.mark);
        let order = Permutation::new(self.course.num_samples(), self.config.seed, batch.epoch);
        let model = self.model.as_mut();

        let local_loss =
            replicas.gradients(model, &self.data.train, &order, &batch, &mut sections)?;
        let gradient_norm =
            sections.time(Section::Optimizer, || model.parameters().gradient_norm())?;
        let is_finite = local_loss.is_finite() && gradient_norm.is_finite();
        let standing = Standing {
            finite: is_finite,
            leaving: self.machine.is_leaving(),
            newest_seen,
            saving,
            own_time: self.last_step.0,
        };
        faults::point(Point::Agree, replicas.world().rank(), batch.step);
        let end = sections.time(Section::Communication, || {
            replicas.world().end_step(local_loss, &standing)
        })?;
        if let Some(peers) = &self.peers {
            peers.interrupter.step_ends();
        }
        let step = batch.step;
        if !end.agreement.all_finite {
            return Err(Failure::Diverged {
                step,
                loss: local_loss / batch.num_samples() as f64,
                gradient_norm,
            });
        }
        faults::point(Point::Update, replicas.world().rank(), step);
        sections.time(Section::Optimizer, || {
            self.optimizer
                .step(model.parameters_mut(), learning_rate, step)
        })?;
        self.mark = self.mark.after(batch.num_samples());
        faults::point(Point::Commit, replicas.world().rank(), step);

        self.reporter.compare(&end.own_seconds, self.last_step.1);
        let unevenness = replicas.unevenness(batch.num_samples());
        self.last_step = (sections.own_time(), unevenness);

        let loss = end.loss_sum / batch.num_samples() as f64;
        self.keep(&batch, loss, &end.saving)?;
        self.reporter.commit(&StepReport {
            step,
            epoch: self.course.position_at(self.mark.samples).epoch,
            num_samples: batch.num_samples(),
            loss,
            gradient_norm,
            learning_rate,
            duration: started.elapsed(),
            sections,
        });
        if end.agreement.all_leave {
            // What little time is left is for the state.
            self.save_before_leaving()?;
        }
        Ok(Event::Boundary {
            agreed_generation: end.agreement.newest_generation,
            all_leave: end.agreement.all_leave,
        })
    }
}
