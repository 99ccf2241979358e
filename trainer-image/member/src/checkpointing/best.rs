//! Saves a state that was evaluated better than all states before it. Training stops until its
//! bytes are copied; they are written while training continues.

use std::time::{Duration, Instant};

use roundhouse_contract::BestMetric;
use roundhouse_elastic::best::Scores;
use roundhouse_elastic::saving;
use roundhouse_report::say_error;

use super::Checkpointing;
use crate::failure::Failure;
use crate::group::Rendezvous;
use crate::member::Member;
use crate::state::State;

/// Interval at which the ranks exchange whether an earlier save has ended.
const PAUSE: Duration = Duration::from_millis(10);
/// Maximum time for which training waits for an earlier save before it begins the save of the best
/// state.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

impl<R: Rendezvous> Member<'_, R> {
    /// Called when the state of this step was evaluated, with the same result on all ranks. If it
    /// is the best one so far and the best checkpoint is kept, a save of this state begins. A
    /// collective: all ranks call it at the same step. Rank 0 decides, because it knows the
    /// contents of the volume.
    ///
    /// If an earlier save is in flight, training waits for it for at most 10 s, or until a rank
    /// knows a newer generation. Then this state is not saved.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] if a rank is lost, [`Failure::State`] if the state cannot be copied,
    /// [`Failure::Fenced`] if a newer generation has written.
    pub fn keep_best<S: State>(&mut self, scores: Scores, state: &S) -> Result<(), Failure> {
        let step = self.local_state.position.step;
        self.local_state.scores = Some((step, scores));
        let is_first = self.world()?.rank() == 0;
        let checkpointing = self.checkpointing.as_mut().filter(|_| is_first);
        if let Some(metric) =
            checkpointing.and_then(|checkpointing| checkpointing.missing_metric_to_report(&scores))
        {
            say_error(&format!(
                "no checkpoint of step {step} is kept as the best one: its evaluation has no finite {metric}"
            ));
        }
        self.save_best(Some(scores), state, LONGEST_WAIT)
    }

    /// Called when a generation has formed. If its state was evaluated and is not saved, repeats
    /// [`Self::keep_best`] without waiting for an earlier save. If steps were committed since the
    /// best state, one rank reports that it was not saved.
    pub(crate) fn resume_best<S: State>(&mut self, state: &S) -> Result<(), Failure> {
        let step = self.local_state.position.step;
        let scores = self.local_state.scores_of(step);
        let Some(checkpointing) = &self.checkpointing else {
            return Ok(());
        };
        if !checkpointing.saver.judges() {
            return Ok(());
        }
        let is_saved = checkpointing.saver.has(step);
        if let Some(lost) = self.lost_best()? {
            say_error(&format!(
                "the best state, of step {lost}, was not saved: a new generation formed before its checkpoint was complete"
            ));
        }
        self.save_best(scores.filter(|_| !is_saved), state, Duration::ZERO)
    }

    /// Step of a best state that is neither saved nor in memory any more. Only the lowest rank that
    /// knows of it gets a result: rank 0, if it was in the previous generation.
    fn lost_best(&mut self) -> Result<Option<u64>, Failure> {
        let step = self.local_state.position.step;
        let unsaved = self.checkpointing.as_ref().and_then(|it| it.unsaved_best);
        let lost = unsaved.filter(|unsaved| *unsaved < step);
        let world = self.world()?;
        let (rank, knowing) = (world.rank(), world.ranks_that(lost.is_some())?);
        if let Some(checkpointing) = &mut self.checkpointing {
            checkpointing.unsaved_best = None;
        }
        Ok(lost.filter(|_| knowing.first() == Some(&rank)))
    }

    /// Saves the state if `scores`, the result of its evaluation, is the best so far. Only those of
    /// rank 0 count.
    fn save_best<S: State>(
        &mut self,
        scores: Option<Scores>,
        state: &S,
        longest_wait: Duration,
    ) -> Result<(), Failure> {
        let step = self.local_state.position.step;
        let generation = self.local_state.generation();
        let begun = Instant::now();
        loop {
            if self.machine.current_generation().is_some() {
                // A process that forms a generation must not change to a newer one here.
                self.poll_inputs();
            }
            let is_cut_off = self.knows_newer_generation() || self.must_break_off();
            let Some(checkpointing) = &mut self.checkpointing else {
                return Ok(());
            };
            if !checkpointing.saver.judges() {
                return Ok(());
            }
            checkpointing.report_results(generation, self.reporter)?;
            self.reporter
                .volume_moves(checkpointing.directory.io_watch().moves());
            let is_wanted = scores.is_some_and(|scores| {
                !checkpointing.judge(step, scores) && checkpointing.saver.is_best(step, &scores)
            });
            let mut own = checkpointing.standing(is_wanted);
            own.gives_up = is_cut_off || begun.elapsed() >= longest_wait;
            let world = self.world()?;
            let rank = world.rank();
            let sum = world.sum_saving(&own)?;
            self.local_state.chain.forget_through(sum.durable_line);
            if !sum.is_time {
                return Ok(());
            }
            let is_idle = sum.stages == saving::Stages::default();
            if !is_idle && (sum.gives_up || sum.num_stuck > 0) {
                if rank == 0 {
                    say_error(&format!(
                        "the save of the best state, of step {step}, does not begin: an earlier checkpoint is still being written"
                    ));
                }
                return Ok(());
            }
            self.proceed(&sum, is_idle, state)?;
            if is_idle {
                if let Some(checkpointing) = &mut self.checkpointing {
                    checkpointing.begins_best();
                }
                return Ok(());
            }
            std::thread::sleep(PAUSE);
        }
    }
}

impl Checkpointing {
    /// Adds scores to the save in flight, if it is of this step. Returns whether it is.
    fn judge(&mut self, step: u64, scores: Scores) -> bool {
        let is_best = self.saver.is_best(step, &scores);
        let in_flight = self.saver.in_flight().map(|(step, ..)| step);
        match &mut self.saved {
            Some(saved) if in_flight == Some(step) && saved.position.step == step => {
                saved.scores = Some(scores);
                saved.is_best |= is_best;
                true
            }
            Some(_) | None => false,
        }
    }

    /// The metric of the best checkpoint, the first time that an evaluation lacks it.
    fn missing_metric_to_report(&mut self, scores: &Scores) -> Option<BestMetric> {
        let lack = self
            .saver
            .lacks(scores)
            .filter(|_| !self.has_reported_missing_metric)?;
        self.has_reported_missing_metric = true;
        Some(lack)
    }

    /// Records that the save that has just begun is of the best state.
    const fn begins_best(&mut self) {
        if let Some(saved) = &mut self.saved {
            saved.is_best = true;
        }
    }
}

#[cfg(test)]
mod tests;
