//! What is done between steps: evaluation, and the end.

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

/// Most samples of one forward pass of an evaluation when the configuration sets no bound.
const MOST_SAMPLES: u64 = 1_024;
/// Below so many operations in a training step a sample is small.
const FEW_FLOPS: f64 = 1e8;

impl Trainer<'_> {
    /// At the end of every so many epochs or steps and of training, unless it has been done: a world that breaks while it
    /// evaluates does it again in the next generation.
    pub(super) fn is_evaluation_due(&self) -> bool {
        let position = self.member.held.position;
        self.pending.is_none()
            && self.member.held.evaluated != position.samples
            && self.is_evaluated_at(&position)
    }

    /// Whether the state that has come so far is to be evaluated.
    pub(super) fn is_evaluated_at(&self, position: &TrainingPosition) -> bool {
        let (data_schedule, eval) = (&self.plan.data_schedule, &self.work.config.eval);
        self.work.test.is_some()
            && data_schedule.is_evaluated_at(position.step, position.samples, eval)
    }

    /// What comes now takes ranks differently long, and has nothing to do with how long a step takes. `longest`: how
    /// long it has taken in this generation.
    fn wait_beside_steps(&mut self, longest: Option<Duration>) -> Result<(), Failure> {
        if let Some(group) = self.member.world()?.group() {
            group.set_timeout(self.launch.timeouts.beside_steps(longest));
            // The next step sets its own.
            self.last_step.timeout = None;
        }
        Ok(())
    }

    /// How many samples one forward pass of an evaluation takes.
    fn evaluation_piece(&self) -> Result<u32, Failure> {
        if let Some(configured) = self.work.config.micro_batch_size {
            return Ok(configured);
        }
        let world_size = u64::from(self.member.world()?.size());
        // What fits into a training pass fits into one of an evaluation.
        let batch_size = self
            .plan
            .data_schedule
            .batch_size(&self.member.held.position);
        let pass = batch_size.div_ceil(world_size);
        // Samples that cost little are small, and many of them fit, too.
        let flops = self.work.task.flops_per_sample();
        let least = if flops.is_some_and(|flops| flops < FEW_FLOPS) {
            MOST_SAMPLES
        } else {
            1
        };
        Ok(u32::try_from(pass.clamp(least, MOST_SAMPLES)).unwrap_or(1))
    }

    /// Evaluates, unless a rank that is to leave breaks it off, or one that is alone and was waited for too long.
    /// The end of an evaluation is a boundary, as a step's end is, unless training is complete.
    pub(super) fn evaluate(&mut self) -> Result<Event, Failure> {
        self.enter(Phase::Evaluating);
        self.wait_beside_steps(self.longest_evaluation)?;
        let started = Instant::now();
        let piece_size = self.evaluation_piece()?;
        let Some(test) = &mut self.work.test else {
            return Err(Failure::internal("an evaluation without data"));
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
        let position = self.member.held.position;
        if let Some(evaluation) = &evaluation {
            self.longest_evaluation = self.longest_evaluation.max(Some(started.elapsed()));
            self.member.reporter.evaluated(evaluation);
            self.member
                .keep_best(evaluation.scores(), &self.work.tensors)?;
            // A world that breaks before it knows whether this state is the best one evaluates it again. If it breaks
            // later, the next world begins the save again.
            self.member.held.evaluated = position.samples;
        }
        if evaluation.is_some() && self.plan.data_schedule.batch_at(&position).is_none() {
            // Only the last save is left to do. It needs no newcomer, and is all that a rank that leaves could do.
            return Ok(Event::Boundary {
                agreed_generation: self.member.current_generation(),
                all_leave: false,
            });
        }
        self.member.look();
        let newest = self.member.newest_for_all();
        let is_leaving = self.member.is_leaving();
        let agreement = self.member.world()?.agree(newest, is_leaving)?;
        if agreement.all_leave {
            self.member.save_before_leaving(&self.work.tensors)?;
        } else {
            self.enter(Phase::Training);
        }
        if evaluation.is_none() {
            // It is due again, and will be broken off again before the generation without the rank that leaves.
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(Event::Boundary {
            agreed_generation: agreement.newest_generation,
            all_leave: agreement.all_leave,
        })
    }

    /// No rank ends before the results are written: a rank that ends with success knows that they are.
    pub(super) fn finish(&mut self) -> Result<(), Failure> {
        self.wait_beside_steps(None)?;
        let saved = self.member.save_result(&self.work.tensors);
        if !matches!(saved, Ok(()) | Err(MemberFailure::Unsaved { .. })) {
            return Ok(saved?);
        }
        // The weights may be for another volume.
        let world = self.member.world()?;
        if let (Some(path), 0) = (&self.launch.save_weights, world.rank()) {
            let (parameters, averages) = (self.work.task.parameters(), self.work.update.averages());
            let step = self.member.held.position.step;
            ema::in_place_of_weights(parameters, averages, || {
                weights::save(path, parameters, step)
            })??;
        }
        world.barrier()?;
        Ok(saved?)
    }
}
