//! The work between steps: evaluations, and the end of the training.

use std::path::Path;
use std::time::{Duration, Instant};

use roundhouse_contract::Phase;
use roundhouse_elastic::{Event, TrainingPosition};
use roundhouse_member::failure::Failure as MemberFailure;
use roundhouse_member::membership::POLL_INTERVAL;

use super::Trainer;
use crate::evaluate::{Passes, evaluate};
use crate::failure::Failure;
use crate::{ema, replica, weights};

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
        self.set_timeout(self.launch.timeouts.beside_steps(longest))?;
        // The next step sets its own timeout.
        self.last_step.timeout = None;
        Ok(())
    }

    /// Sets how long later collectives wait for their peers.
    pub(super) fn set_timeout(&self, timeout: Duration) -> Result<(), Failure> {
        if let Some(group) = self.member.world()?.group() {
            group.set_timeout(timeout);
        }
        if let Some(replica) = &self.replica {
            // A sibling may wait for its column before it answers.
            replica.set_timeout(2 * timeout);
        }
        Ok(())
    }

    /// Number of samples per forward pass of an evaluation.
    fn evaluation_piece(&self) -> Result<u32, Failure> {
        if let Some(configured) = self.work.config.micro_batch_size {
            return Ok(configured);
        }
        let world = self.member.world()?;
        let parameters = self.work.task.parameters();
        let (_, num_shares) = parameters.share_of(world.rank(), world.size());
        // Samples that fit into a training pass also fit into an evaluation pass.
        let batch_size = self
            .plan
            .data_schedule
            .batch_size(&self.member.local_state.position);
        let pass = batch_size.div_ceil(num_shares.into());
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
        let generation = self.member.current_generation();
        let is_over = || self.member.must_break_off();
        // If a pass needs all processes of the replica, all of them stop or none.
        let needs_replica = task.parameters().needs_replica();
        let replica = self.replica.as_mut().filter(|_| needs_replica);
        let mut stops: Box<dyn FnMut(bool) -> Result<bool, Failure> + '_> = match replica {
            None => Box::new(Ok),
            Some(replica) => Box::new(move |own| {
                let own = f64::from(u8::from(own));
                Ok(replica.sum(generation, [own, 0.0], most)?[0] > 0.0)
            }),
        };
        let evaluation = ema::in_place_of_weights(task.parameters(), averages, || {
            let passes = Passes {
                piece_size,
                precision: self.work.config.precision,
                is_over: &is_over,
                stops: stops.as_mut(),
            };
            evaluate(task, test.as_mut(), world, passes)
        })??;
        drop(stops);
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
        if let Some(path) = self.launch.save_weights.clone() {
            self.save_weights(&path)?;
        }
        let world = self.member.world()?;
        world.barrier()?;
        saved?;
        Ok(self.member.await_writer()?)
    }

    /// Writes the weights on rank 0, with the help of its replica.
    fn save_weights(&mut self, path: &Path) -> Result<(), Failure> {
        let step = self.member.local_state.position.step;
        let (rank, num_shards) = {
            let world = self.member.world()?;
            (world.rank(), world.num_shards())
        };
        if rank >= num_shards {
            return Ok(());
        }
        if self.work.task.parameters().needs_replica() {
            self.confirm_with_replica()?;
        }
        let (parameters, averages) = (self.work.task.parameters(), self.work.update.averages());
        let whole = parameters.whole(rank == 0).map_err(replica::explain)?;
        if rank > 0 {
            return Ok(());
        }
        let parameters = whole.as_ref().unwrap_or(parameters);
        Ok(ema::in_place_of_weights(parameters, averages, || {
            weights::save(path, parameters, step)
        })??)
    }
}
