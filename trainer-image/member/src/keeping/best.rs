//! The checkpoint of a state that was evaluated better than all before it. Training stands still until its bytes are
//! copied; they are written while it goes on.

use std::time::{Duration, Instant};

use roundhouse_elastic::best::Scores;
use roundhouse_elastic::saving;

use crate::failure::Failure;
use crate::group::Rendezvous;
use crate::member::Member;
use crate::report::say_error;
use crate::state::State;

/// How often the ranks ask each other whether an earlier save is over.
const PAUSE: Duration = Duration::from_millis(10);
/// Longest time for which training waits for an earlier save before it begins the save of the best state.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

impl<R: Rendezvous> Member<'_, R> {
    /// The state of this step was evaluated, with the same result on all ranks. If it is the best one so far, and the
    /// best checkpoint is to be kept, a save of this state begins. A collective: all ranks call it at the same step.
    /// Rank 0 decides, because it knows what is on the volume.
    ///
    /// If an earlier save is in flight, training waits for it, for 10 s at most, and no longer when a rank hears of a
    /// newer generation. Then this state is not saved.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when a rank is gone, [`Failure::State`] when the state cannot be copied,
    /// [`Failure::Fenced`].
    pub fn keep_best<S: State>(&mut self, scores: Scores, state: &S) -> Result<(), Failure> {
        let step = self.held.mark.step;
        self.held.scores = Some((step, scores));
        self.save_best(scores, state, LONGEST_WAIT)
    }

    fn save_best<S: State>(
        &mut self,
        scores: Scores,
        state: &S,
        longest_wait: Duration,
    ) -> Result<(), Failure> {
        let step = self.held.mark.step;
        let generation = self.held.generation();
        let begun = Instant::now();
        loop {
            self.look();
            let is_cut_off = self.knows_newer_generation() || self.must_break_off();
            let Some(keeping) = &mut self.keeping else {
                return Ok(());
            };
            if !keeping.saver.judges() {
                return Ok(());
            }
            keeping.hear(generation, self.reporter)?;
            self.reporter
                .volume_moves(keeping.directory.pulse().moves());
            let is_on_its_way = keeping.judge(step, scores);
            let is_wanted = !is_on_its_way && keeping.saver.is_best(step, &scores);
            let mut own = keeping.standing(is_wanted);
            own.gives_up = is_cut_off || begun.elapsed() >= longest_wait;
            let world = self.world()?;
            let rank = world.rank();
            let sum = world.sum_saving(&own)?;
            self.held.chain.forget_through(sum.durable_line);
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
                return Ok(());
            }
            std::thread::sleep(PAUSE);
        }
    }
}

#[cfg(test)]
mod tests;
