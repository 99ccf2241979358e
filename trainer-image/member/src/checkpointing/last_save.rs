//! The save that training waits for: at its end, and before all leave.

use std::time::{Duration, Instant};

use roundhouse_contract::Phase;
use roundhouse_elastic::saving::{self, Stage};
use roundhouse_report::say_error;

use crate::failure::{Failure, Kept};
use crate::group::Rendezvous;
use crate::member::Member;
use crate::state::State;
use crate::world::SavingSum;

/// How often the ranks ask each other how far they are when training waits for a save.
const PAUSE: Duration = Duration::from_millis(10);
/// How long after a failed save the next is tried. The others wait in a collective meanwhile, which has more
/// patience.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What is to become of the process when the volume fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Training is complete: without its result it has not succeeded.
    Result,
    /// All leave, and have no time for more than one try.
    Leaving,
}

/// What this rank knows of the tries so far.
#[derive(Debug)]
struct Tries {
    purpose: Purpose,
    num_begun: u32,
    failed_since: Option<Instant>,
}

impl<R: Rendezvous> Member<'_, R> {
    /// All leave, so that the state is nowhere but on the volume. If a peer is lost meanwhile, or the save of one rank fails, each
    /// process saves it alone: the volume may be in order for one of them.
    ///
    /// # Errors
    /// [`Failure::State`] when the state cannot be copied, [`Failure::Fenced`].
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
            // The process saves its state alone.
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

    /// Whether each rank knows of a checkpoint of this step: only rank 0 notices that its name could not be given. All ranks ask at
    /// the same time. No, if a peer is lost meanwhile.
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

    /// Training is complete. No rank ends before its state is saved.
    ///
    /// # Errors
    /// As [`Self::save_now`].
    pub fn save_result<S: State>(&mut self, state: &S) -> Result<(), Failure> {
        self.leave.hold_on();
        self.enter(Phase::Saving);
        self.save_now(Purpose::Result, state)
    }

    /// Saves the state of this step and waits until that is done, on all ranks; a save in flight is waited
    /// for, too. A slow volume is waited for as long as anything moves.
    ///
    /// # Errors
    /// [`Failure::Unsaved`] when nothing has moved for too long or, for a [`Purpose::Result`], when it was
    /// tried for too long. All ranks conclude it together.
    pub fn save_now<S: State>(&mut self, purpose: Purpose, state: &S) -> Result<(), Failure> {
        let mut tries = Tries {
            purpose,
            num_begun: 0,
            failed_since: None,
        };
        let generation = self.local_state.generation();
        while let Some(checkpointing) = &mut self.checkpointing {
            checkpointing.hear(generation, self.reporter)?;
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

    /// A rank that has written its part long ago would be taken for hung while the others' bytes still move.
    fn pass_on_moves(&self, own: Stage, sum: &SavingSum) {
        if let Some(checkpointing) = &self.checkpointing
            && saving::others_move(own, &sum.stages, sum.num_stuck)
        {
            checkpointing.directory.io_watch().advance(1);
        }
    }

    /// Tells of a save that takes too long, and when that is over.
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
    /// Leaving allows one; what has failed just now would fail again.
    const fn may_begin(&self) -> bool {
        match self.purpose {
            Purpose::Result => true,
            Purpose::Leaving => self.num_begun == 0,
        }
    }

    /// For how long all that was tried has failed; nothing as long as one is on its way.
    fn failing(&mut self, is_saved: bool) -> Duration {
        if is_saved || self.num_begun == 0 || self.purpose == Purpose::Leaving {
            return Duration::ZERO;
        }
        self.failed_since.get_or_insert_with(Instant::now).elapsed()
    }
}
