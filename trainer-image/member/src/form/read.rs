//! Reading a checkpoint for all: the rank that the others have agreed on reads and checks its bytes, in a thread,
//! while all ranks ask it how far it is.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use roundhouse_elastic::Origin;

use crate::checkpoint::{Damage, Standstill, Trouble, load};
use crate::failure::Failure;
use crate::group::Rendezvous;
use crate::keeping::Keeping;
use crate::member::Member;
use crate::report::{say, say_error};
use crate::state::State;
use crate::world::{Agreed, World};

/// How often the ranks ask.
const PAUSE: Duration = Duration::from_millis(10);

/// The rank that reads, on its way.
struct Reading {
    pieces: Receiver<load::Message>,
    standstill: Standstill,
    started: Instant,
    moves: u64,
    /// Whether the bytes are only checked, since this rank has a state in memory that they would overwrite.
    only_checks: bool,
}

/// How far it is.
enum Progress {
    Reading,
    Done,
    Checked,
    Damaged(Trouble),
}

impl<R: Rendezvous> Member<'_, R> {
    /// Has the checkpoint that the ranks have agreed on read into the state of the rank that reads. `false` when it
    /// is damaged, which all ranks hear of: then they have to agree again.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when a rank is gone; on the rank that reads, [`Failure::VolumeSilent`].
    pub(super) fn read_checkpoint<S: State>(
        &mut self,
        world: &World<R::Group>,
        agreed: &Agreed,
        state: &mut S,
    ) -> Result<bool, Failure> {
        let claim = agreed.source.claim;
        let is_reader = usize::try_from(world.rank()) == Ok(agreed.source.rank);
        let mut reading = None;
        if is_reader {
            // Its bytes are the checkpoint's in part from now on, and it still can read that.
            let keeping = self.keeping.as_ref();
            let keeping =
                keeping.ok_or_else(|| Failure::Internal("no checkpoint directory".to_owned()))?;
            let only_checks = self.held.claim().origin == Origin::Live;
            reading = Some(Reading::begin(keeping, only_checks)?);
        }
        loop {
            let (mut done, mut damage, mut moved) = (0.0, None, 0.0);
            if let (Some(reading), Some(keeping)) = (&mut reading, &self.keeping) {
                match reading.go_on(keeping, state)? {
                    Progress::Reading => {}
                    Progress::Done => done = 1.0,
                    Progress::Checked => {
                        // Now the state in memory may go.
                        if let Some(manifest) = keeping.found() {
                            self.held.stand_for(manifest);
                        }
                        *reading = Reading::begin(keeping, false)?;
                    }
                    Progress::Damaged(trouble) => {
                        say_error(&format!("a checkpoint is passed over: {trouble}"));
                        damage = Some(if trouble.is_io() {
                            Damage::Unread
                        } else {
                            Damage::Bytes
                        });
                    }
                }
                moved = f64::from(u8::from(reading.has_moved(keeping)));
                let pulse = keeping.directory.pulse();
                self.reporter.checkpoint_read(pulse.num_read());
            } else {
                std::thread::sleep(PAUSE);
            }
            let kinds = [Damage::Bytes, Damage::Unread];
            let [wrong, unread] = kinds.map(|it| f64::from(u8::from(damage == Some(it))));
            let sums = world.sum(&[done, wrong, unread, moved])?;
            let (is_done, has_moved) = (sums[0] > 0.0, sums[3] > 0.0);
            self.reading_moves(is_reader, has_moved);
            let mut said = kinds.into_iter().zip(&sums[1..]);
            if let Some((damage, _)) = said.find(|(_, sum)| **sum > 0.0) {
                if let Some(keeping) = &self.keeping {
                    keeping.mark_damaged(&claim, damage);
                }
                self.held.lose(&claim);
                return Ok(false);
            }
            if is_done {
                if let (true, Some(keeping)) = (is_reader, &self.keeping) {
                    let name = keeping.found().map(|it| keeping.name(it));
                    say(&format!(
                        "loaded {}: step {} of generation {}",
                        name.unwrap_or_default(),
                        claim.step,
                        claim.generation
                    ));
                }
                return Ok(true);
            }
        }
    }

    /// Bytes that the reading rank gets from the volume are progress of all ranks.
    fn reading_moves(&mut self, is_reader: bool, has_moved: bool) {
        if let (Some(peers), true) = (&self.peers, has_moved) {
            peers.interrupter.reads();
        }
        if let Some(keeping) = &self.keeping {
            let pulse = keeping.directory.pulse();
            if has_moved && !is_reader {
                pulse.beat(1);
            }
            self.reporter.volume_moves(pulse.moves());
        }
    }
}

impl Reading {
    fn begin(keeping: &Keeping, only_checks: bool) -> Result<Self, Failure> {
        let pulse = keeping.directory.pulse();
        let manifest = keeping.found().cloned();
        let manifest =
            manifest.ok_or_else(|| Failure::Internal("no checkpoint found".to_owned()))?;
        Ok(Self {
            pieces: load::read(&keeping.directory, manifest)?,
            standstill: Standstill::new(pulse),
            started: Instant::now(),
            moves: pulse.moves(),
            only_checks,
        })
    }

    /// Copies in what has come.
    fn go_on<S: State>(&mut self, keeping: &Keeping, state: &mut S) -> Result<Progress, Failure> {
        match self.pieces.recv_timeout(PAUSE) {
            Ok(load::Message::Piece { offset, bytes }) => {
                if !self.only_checks {
                    state.copy_in(offset, &bytes)?;
                }
                Ok(Progress::Reading)
            }
            Ok(load::Message::Damaged(trouble)) => Ok(Progress::Damaged(trouble)),
            Ok(load::Message::Whole) if self.only_checks => Ok(Progress::Checked),
            Ok(load::Message::Whole) => Ok(Progress::Done),
            Err(RecvTimeoutError::Disconnected) => Err(Failure::Internal(
                "the thread that reads a checkpoint panicked".to_owned(),
            )),
            Err(RecvTimeoutError::Timeout) => {
                let still = self.standstill.look(keeping.directory.pulse());
                if keeping.patience.is_over(still) {
                    return Err(Failure::VolumeSilent {
                        dir: keeping.directory.root().to_owned(),
                        waited: self.started.elapsed(),
                    });
                }
                Ok(Progress::Reading)
            }
        }
    }

    fn has_moved(&mut self, keeping: &Keeping) -> bool {
        let moves = keeping.directory.pulse().moves();
        std::mem::replace(&mut self.moves, moves) != moves
    }
}
