//! The work between steps: evaluations, and the end of the training.

use std::time::{Duration, Instant};

use roundhouse_contract::Phase;
use roundhouse_elastic::{Event, TrainingPosition};
use roundhouse_member::failure::Failure as MemberFailure;
use roundhouse_member::membership::POLL_INTERVAL;

use super::Trainer;
use crate::ema;
use crate::evaluate::evaluate;
use crate::failure::Failure;
use crate::weights;

/// Largest number of samples per forward pass of an evaluation, if the configuration sets no bound.
const MOST_SAMPLES: u64 = 1_024;
/// A sample with fewer floating-point operations per training step counts as small.
const FEW_FLOPS: f64 = 1e8;

impl Trainer<'_> {
    /// Whether an evaluation is due: after a configured number of epochs or steps and at the end of
    /// training. If the process group fails during an evaluation, the next generation repeats it.
    pub(super) fn is_evaluation_due(&self) -> bool {
        let position = self.member.local_state.position;
        self.pending.is_none()
            && self.member.local_state.evaluated != position.samples
            && self.is_evaluated_at(&position)
    }

    /// Whether the configuration evaluates the state at this position.
    pub(super) fn is_evaluated_at(&self, position: &TrainingPosition) -> bool {
        let (data_schedule, eval) = (&self.plan.data_schedule, &self.work.config.eval);
        self.work.test.is_some()
            && data_schedule.is_evaluated_at(position.step, position.samples, eval)
    }

    /// Raises the timeout for work whose duration is unrelated to steps and differs between ranks.
    /// `longest`: the longest such work in this generation.
    fn wait_beside_steps(&mut self, longest: Option<Duration>) -> Result<(), Failure> {
        if let Some(group) = self.member.world()?.group() {
            group.set_timeout(self.launch.timeouts.beside_steps(longest));
            // The next step sets its own timeout.
            self.last_step.timeout = None;
        }
        Ok(())
    }

    /// Number of samples per forward pass of an evaluation.
    fn evaluation_piece(&self) -> Result<u32, Failure> {
        if let Some(configured) = self.work.config.micro_batch_size {
            return Ok(configured);
        }
        let world_size = u64::from(self.member.world()?.size());
        // Samples that fit into a training pass also fit into an evaluation pass.
        let batch_size = self
            .plan
            .data_schedule
            .batch_size(&self.member.local_state.position);
        let pass = batch_size.div_ceil(world_size);
        // Samples with few operations are small, so many of them fit.
        let flops = self.work.task.flops_per_sample();
        let least = if flops.is_some_and(|flops| flops < FEW_FLOPS) {
            MOST_SAMPLES
        } else {
            1
        };
        Ok(u32::try_from(pass.clamp(least, MOST_SAMPLES)).unwrap_or(1))
    }

    /// Evaluates. A rank that must leave, or a process alone that must stop, ends the evaluation
    /// early. The end of an evaluation is a boundary like the end of a step, unless training is
    /// complete.
    pub(super) fn evaluate(&mut self) -> Result<Event, Failure> {
        let most = self.launch.timeouts.beside_steps(self.longest_evaluation);
        self.member.evaluates(most);
        self.wait_beside_steps(self.longest_evaluation)?;
        let started = Instant::now();
        let piece_size = self.evaluation_piece()?;
        let Some(test) = &mut self.work.test else {
            return Err(Failure::internal("the evaluation has no data"));
        };
        let (task, world) = (self.work.task.as_ref(), self.member.world()?);
        let averages = self.work.update.averages();
        let evaluation = ema::in_place_of_weights(task.parameters(), averages, || {
            let is_over = || self.member.must_break_off();
            evaluate(
                task,
                test.as_mut(),
                world,
                piece_size,
                self.work.config.precision,
                is_over,
            )
        })??;
        let position = self.member.local_state.position;
        if let Some(evaluation) = &evaluation {
            self.longest_evaluation = self.longest_evaluation.max(Some(started.elapsed()));
            self.member.reporter.evaluated(evaluation);
            self.member
                .keep_best(evaluation.scores(), &self.work.tensors)?;
            // If the process group fails before this line, the next generation repeats the
            // evaluation. If it fails later, the next generation starts the save of the best
            // checkpoint again.
            self.member.local_state.evaluated = position.samples;
        }
        if evaluation.is_some() && self.plan.data_schedule.batch_at(&position).is_none() {
            // Only the final save remains. It needs no new rank, and a rank that must leave would
            // also only save.
            return Ok(Event::Boundary {
                agreed_generation: self.member.current_generation(),
                all_leave: false,
            });
        }
        self.member.poll_inputs();
        let newest = self.member.newest_for_all();
        let is_leaving = self.member.is_leaving();
        let agreement = self.member.world()?.agree(newest, is_leaving)?;
        if agreement.all_leave {
            self.member.save_before_leaving(&self.work.tensors)?;
        } else {
            self.enter(Phase::Training);
        }
        if evaluation.is_none() {
            // The evaluation stays due and would stop early again until the generation without the
            // leaving rank forms.
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(Event::Boundary {
            agreed_generation: agreement.newest_generation,
            all_leave: agreement.all_leave,
        })
    }

    /// Saves the results. No rank ends before the results are written, so a rank that exits with
    /// success proves that they are complete.
    pub(super) fn finish(&mut self) -> Result<(), Failure> {
        self.wait_beside_steps(None)?;
        let saved = self.member.save_result(&self.work.tensors);
        if !matches!(saved, Ok(()) | Err(MemberFailure::Unsaved { .. })) {
            return Ok(saved?);
        }
        // The weights may be on another volume, so save them even if the checkpoint failed.
        let world = self.member.world()?;
        if let (Some(path), 0) = (&self.launch.save_weights, world.rank()) {
            let (parameters, averages) = (self.work.task.parameters(), self.work.update.averages());
            let step = self.member.local_state.position.step;
            ema::in_place_of_weights(parameters, averages, || {
                weights::save(path, parameters, step)
            })??;
        }
        world.barrier()?;
        saved?;
        Ok(self.member.await_writer()?)
    }
}
