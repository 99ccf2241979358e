//! The saves that training waits for: at its end, and before all ranks leave.

use std::time::{Duration, Instant};

use roundhouse_contract::Phase;
use roundhouse_elastic::saving::{self, Stage};
use roundhouse_report::say_error;

use crate::checkpoint::IdleTimer;
use crate::failure::{Failure, Kept};
use crate::group::Rendezvous;
use crate::member::Member;
use crate::state::State;
use crate::world::SavingSum;

/// Interval at which the ranks exchange their progress while training waits for a save.
const PAUSE: Duration = Duration::from_millis(10);
/// Pause after a failed save. Meanwhile the other ranks wait in a collective, whose timeout is
/// longer.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What happens to the process if the volume fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Training is complete. Without a saved result it has failed.
    Result,
    /// All ranks leave and have time for one attempt only.
    Leaving,
}

/// This rank's attempts so far.
#[derive(Debug)]
struct Tries {
    purpose: Purpose,
    num_begun: u32,
    failed_since: Option<Instant>,
}

impl<R: Rendezvous> Member<'_, R> {
    /// Saves the state because all ranks leave. If a peer is lost meanwhile or the save of a rank
    /// fails, each process saves the state alone: the volume may work for one of them.
    ///
    /// # Errors
    /// [`Failure::State`] if the state cannot be copied, [`Failure::Fenced`] if a newer generation
    /// has written.
    pub fn save_before_leaving<S: State>(&mut self, state: &S) -> Result<(), Failure> {
        self.leave.hold_on();
        self.enter(Phase::Saving);
        match self.save_now(Purpose::Leaving, state) {
            Ok(()) => {
                if self.is_saved_by_all() {
                    self.kept = self.checkpointing.as_ref().map(|_| Kept::Checkpoint);
                } else {
                    let reason = self.reporter.checkpoint_problem();
                    say_error(&format!("no checkpoint of the last step: {reason}"));
                }
                Ok(())
            }
            // The process will save its state alone.
            Err(failure @ Failure::PeerLost(_)) => {
                say_error(&format!("no checkpoint of the last step: {failure}"));
                Ok(())
            }
            Err(failure @ Failure::Unsaved { .. }) => {
                say_error(&format!("no checkpoint of the last step: {failure}"));
                let reason = self.reporter.checkpoint_problem();
                self.kept = Some(Kept::Nowhere(reason));
                Ok(())
            }
            result => result,
        }
    }

    /// Whether all ranks have a checkpoint of this step. Only rank 0 notices if it could not get
    /// its name. All ranks call this at the same time. False if a peer is lost meanwhile.
    fn is_saved_by_all(&self) -> bool {
        let Some(checkpointing) = &self.checkpointing else {
            return true;
        };
        let lacks = f64::from(u8::from(
            !checkpointing.saver.has(self.local_state.position.step),
        ));
        let sum = self.world().and_then(|world| world.sum(&[lacks]));
        sum.is_ok_and(|lacking| lacking == [0.0])
    }

    /// Saves the result of a complete training. No rank ends before the state is saved.
    ///
    /// # Errors
    /// Those of [`Self::save_now`].
    pub fn save_result<S: State>(&mut self, state: &S) -> Result<(), Failure> {
        self.leave.hold_on();
        self.enter(Phase::Saving);
        self.save_now(Purpose::Result, state)
    }

    /// Waits until the writing thread of this rank has ended its work, unless the volume moves
    /// nothing for too long. On rank 0 the thread names the best checkpoint and deletes old ones,
    /// which no later generation would do.
    ///
    /// # Errors
    /// [`Failure::Fenced`] if a newer generation has written.
    pub fn await_writer(&mut self) -> Result<(), Failure> {
        let generation = self.local_state.generation();
        let Some(checkpointing) = &mut self.checkpointing else {
            return Ok(());
        };
        let io_watch = checkpointing.directory.io_watch().clone();
        let mut idle_timer = IdleTimer::new(&io_watch);
        while checkpointing.saver.is_working()
            && !checkpointing
                .io_timeout
                .is_over(idle_timer.elapsed(&io_watch))
        {
            std::thread::sleep(PAUSE);
            self.reporter.volume_moves(io_watch.moves());
            checkpointing.report_results(generation, self.reporter)?;
        }
        if checkpointing.saver.is_working() {
            say_error(
                "the volume does not answer: old checkpoints may remain, and best.json may name an earlier one",
            );
        }
        Ok(())
    }

    /// Saves the state of this step on all ranks and waits for the end of the save, and before it
    /// for a save in flight. A slow volume may take any time as long as bytes move.
    ///
    /// # Errors
    /// [`Failure::Unsaved`] on all ranks if no bytes have moved for too long or, for a
    /// [`Purpose::Result`], if attempts have failed for too long.
    pub fn save_now<S: State>(&mut self, purpose: Purpose, state: &S) -> Result<(), Failure> {
        let mut tries = Tries {
            purpose,
            num_begun: 0,
            failed_since: None,
        };
        let generation = self.local_state.generation();
        while let Some(checkpointing) = &mut self.checkpointing {
            checkpointing.report_results(generation, self.reporter)?;
            self.reporter
                .volume_moves(checkpointing.directory.io_watch().moves());
            let is_saved = checkpointing.saver.has(self.local_state.position.step);
            let still = checkpointing.saver.idle_time();
            let mut own = checkpointing.standing(!is_saved && tries.may_begin());
            let failing = tries.failing(is_saved);
            own.gives_up = checkpointing.io_timeout.is_over(failing.max(still));
            if own.is_time && own.stage == Stage::Idle && tries.num_begun > 0 {
                std::thread::sleep(RETRY_AFTER);
            }
            let sum = self.world()?.sum_saving(&own)?;
            if let Some(peers) = &self.peers {
                peers.interrupter.moves();
            }
            self.local_state.chain.forget_through(sum.durable_line);
            self.pass_on_moves(own.stage, &sum);
            self.report_delay(&sum)?;
            if sum.gives_up {
                return Err(self.unsaved());
            }
            let is_idle = sum.stages == saving::Stages::default();
            if is_idle && !sum.is_time {
                return Ok(());
            }
            tries.num_begun += u32::from(is_idle && sum.is_time);
            self.proceed(&sum, is_idle && sum.is_time, state)?;
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Counts progress of other ranks: otherwise the agent would consider a rank hung that has
    /// written its part long ago.
    fn pass_on_moves(&self, own: Stage, sum: &SavingSum) {
        if let Some(checkpointing) = &self.checkpointing
            && saving::others_move(own, &sum.stages, sum.num_stuck)
        {
            checkpointing.directory.io_watch().advance(1);
        }
    }

    /// Reports a save that takes too long, and when that is over.
    pub(super) fn report_delay(&mut self, sum: &SavingSum) -> Result<(), Failure> {
        let world_size = self.world()?.size();
        if let Some(checkpointing) = &mut self.checkpointing {
            let (step, flight) = checkpointing.flight(sum);
            let delay = checkpointing.io_timeout.delay(&flight);
            let dir = checkpointing.directory.checkpoints();
            self.reporter
                .checkpoint_delayed(&dir, step, world_size, delay);
        }
        Ok(())
    }

    fn unsaved(&self) -> Failure {
        let root = self
            .checkpointing
            .as_ref()
            .map(|checkpointing| checkpointing.directory.root());
        Failure::Unsaved {
            dir: root.map(ToOwned::to_owned).unwrap_or_default(),
            step: self.local_state.position.step,
            reason: self.reporter.checkpoint_problem(),
        }
    }
}

impl Tries {
    /// Leaving allows one attempt: another would fail like the first.
    const fn may_begin(&self) -> bool {
        match self.purpose {
            Purpose::Result => true,
            Purpose::Leaving => self.num_begun == 0,
        }
    }

    /// Time for which all attempts have failed; zero while one is in flight.
    fn failing(&mut self, is_saved: bool) -> Duration {
        if is_saved || self.num_begun == 0 || self.purpose == Purpose::Leaving {
            return Duration::ZERO;
        }
        self.failed_since.get_or_insert_with(Instant::now).elapsed()
    }
}
