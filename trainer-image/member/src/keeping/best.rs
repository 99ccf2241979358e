//! The checkpoint of a state that was evaluated better than all before it. Training stands still until its bytes are
//! copied; they are written while it goes on.

use std::time::Duration;

use roundhouse_elastic::best::Scores;
use roundhouse_elastic::saving;

use crate::failure::Failure;
use crate::group::Rendezvous;
use crate::member::Member;
use crate::report::say_error;
use crate::state::State;

/// How often the ranks ask each other whether an earlier save is over.
const PAUSE: Duration = Duration::from_millis(10);

impl<R: Rendezvous> Member<'_, R> {
    /// The state of this step was evaluated, with the same result on all ranks. If that is the best one so far, and the
    /// best checkpoint is to be kept, a save of this state begins, after an earlier one that is in flight. A collective:
    /// all ranks call it at the same step. Rank 0 decides, because it knows what is on the volume.
    ///
    /// A volume that takes nothing for long is not waited for. Then this state is not kept.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when a rank is gone, [`Failure::State`] when the state cannot be copied,
    /// [`Failure::Fenced`].
    pub fn keep_best<S: State>(&mut self, scores: Scores, state: &S) -> Result<(), Failure> {
        let step = self.held.mark.step;
        self.held.scores = Some((step, scores));
        let generation = self.held.generation();
        while let Some(keeping) = &mut self.keeping {
            if !keeping.saver.judges() {
                return Ok(());
            }
            keeping.hear(generation, self.reporter)?;
            self.reporter
                .volume_moves(keeping.directory.pulse().moves());
            let is_on_its_way = keeping.judge(step, scores);
            let is_wanted = !is_on_its_way && keeping.saver.is_best(step, &scores);
            let still = keeping.saver.stands_still();
            let mut own = keeping.standing(is_wanted);
            own.gives_up = keeping.patience.is_over(still) || self.must_break_off();
            let sum = self.world()?.sum_saving(&own)?;
            if let Some(peers) = &self.peers {
                peers.interrupter.moves();
            }
            self.held.chain.forget_through(sum.durable_line);
            if !sum.is_time {
                return Ok(());
            }
            if sum.gives_up || sum.num_stuck > 0 {
                say_error(&format!(
                    "the best state, of step {step}, is not kept: an earlier checkpoint is still being written"
                ));
                return Ok(());
            }
            let is_idle = sum.stages == saving::Stages::default();
            self.proceed(&sum, is_idle, state)?;
            if is_idle {
                return Ok(());
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }
}
