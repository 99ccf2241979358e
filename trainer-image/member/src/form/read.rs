//! Reads a checkpoint for all ranks: the rank that they have agreed on reads and verifies it in a
//! thread, while all ranks exchange its progress. If the ranks of a replica share the state, each
//! rank of that replica reads the checkpoint and takes its own part.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use roundhouse_elastic::Claim;
use roundhouse_report::{say, say_error};

use crate::checkpoint::{Damage, IdleTimer, VolumeError, load};
use crate::checkpointing::Checkpointing;
use crate::failure::Failure;
use crate::group::Rendezvous;
use crate::member::Member;
use crate::state::State;
use crate::world::{Agreed, World};

/// Interval of the exchanges.
const PAUSE: Duration = Duration::from_millis(10);

/// State of the reading rank.
struct Reading {
    pieces: Receiver<load::Message>,
    idle_timer: IdleTimer,
    started: Instant,
    moves: u64,
    /// Whether the bytes are only verified, because they would overwrite a state in memory.
    only_checks: bool,
    /// Whether all bytes have been read, or the checkpoint is damaged. Other readers may continue.
    has_ended: bool,
    gathered: Gathered,
}

/// Bytes that were read and follow each other in the own row. A tensor whose columns are sharded
/// has many short runs in a checkpoint.
#[derive(Default)]
struct Gathered {
    start: u64,
    bytes: Vec<u8>,
}

/// Number of gathered bytes that are written at once.
const GATHERED_BYTES: usize = 1 << 20;

impl Gathered {
    /// Takes the bytes from `offset` of the state's row on, of which this process has all or some.
    fn take<S: State>(&mut self, state: &mut S, offset: u64, bytes: &[u8]) -> Result<(), Failure> {
        let Some(layout) = state.layout() else {
            return state.copy_in(offset, bytes);
        };
        for (row, own) in layout.places(&(offset..offset + bytes.len() as u64)) {
            let range = [row.start, row.end].map(|at| usize::try_from(at - offset));
            let [Ok(first), Ok(last)] = range else {
                continue;
            };
            let follows = own == self.start + self.bytes.len() as u64;
            if !follows || self.bytes.len() >= GATHERED_BYTES {
                self.flush(state)?;
                self.start = own;
            }
            self.bytes.extend_from_slice(&bytes[first..last]);
        }
        Ok(())
    }

    fn flush<S: State>(&mut self, state: &mut S) -> Result<(), Failure> {
        if !self.bytes.is_empty() {
            state.copy_in(self.start, &self.bytes)?;
            self.bytes.clear();
        }
        Ok(())
    }
}

/// Progress of the reading rank.
enum Progress {
    Reading,
    Done,
    Checked,
    Damaged(VolumeError),
}

impl<R: Rendezvous> Member<'_, R> {
    /// Reads the agreed checkpoint into the state of the reading rank. Returns `false` on all ranks
    /// if the checkpoint is damaged; then they must agree again.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] if a rank is lost; on the reading rank [`Failure::VolumeSilent`].
    pub(super) fn read_checkpoint<S: State>(
        &mut self,
        world: &World<R::Group>,
        agreed: &Agreed,
        state: &mut S,
    ) -> Result<bool, Failure> {
        let claim = agreed.source.claim;
        let num_shards = world.num_shards() as usize;
        let is_reader = world.rank() as usize / num_shards == agreed.source.rank / num_shards;
        let mut reading = None;
        let mut damage = None;
        if is_reader {
            // From now on the reader's bytes are in part the checkpoint's, which it can read again.
            let found = if num_shards > 1 {
                self.take_up(&claim)?
            } else {
                Ok(())
            };
            if let Err(volume_error) = found {
                say_error(&format!("skipping a checkpoint: {volume_error}"));
                damage = Some(Damage::Unread);
            } else {
                let checkpointing = self.checkpointing.as_ref();
                let checkpointing = checkpointing
                    .ok_or_else(|| Failure::Internal("no checkpoint directory".to_owned()))?;
                let only_checks = self.local_state.claim().origin.is_in_memory();
                reading = Some(Reading::begin(checkpointing, only_checks)?);
            }
        }
        let mut done = 0.0;
        loop {
            let mut moved = 0.0;
            if let (Some(reading), Some(checkpointing)) = (&mut reading, &self.checkpointing) {
                match reading.advance(checkpointing, state)? {
                    Progress::Reading => {}
                    Progress::Done => done = 1.0,
                    Progress::Checked => {
                        // The checkpoint is whole, so the state in memory can be replaced.
                        if let Some(manifest) = checkpointing.found() {
                            self.local_state.stand_for(manifest);
                        }
                        *reading = Reading::begin(checkpointing, false)?;
                    }
                    Progress::Damaged(volume_error) => {
                        say_error(&format!("skipping a checkpoint: {volume_error}"));
                        damage = Some(if volume_error.is_io() {
                            Damage::Unread
                        } else {
                            Damage::Bytes
                        });
                    }
                }
                moved = f64::from(u8::from(reading.has_moved(checkpointing)));
                let io_watch = checkpointing.directory.io_watch();
                self.reporter.checkpoint_read(io_watch.num_read());
            } else {
                std::thread::sleep(PAUSE);
            }
            let kinds = [Damage::Bytes, Damage::Unread];
            let [wrong, unread] = kinds.map(|it| f64::from(u8::from(damage == Some(it))));
            let sums = world.sum(&[done, wrong, unread, moved])?;
            let is_done = sums[0] > num_shards as f64 - 0.5;
            let has_moved = sums[3] > 0.0;
            self.reading_moves(is_reader, has_moved);
            let mut reported = kinds.into_iter().zip(&sums[1..]);
            if let Some((damage, _)) = reported.find(|(_, sum)| **sum > 0.0) {
                if let Some(checkpointing) = &self.checkpointing {
                    checkpointing.mark_damaged(&claim, damage);
                }
                self.local_state.lose(&claim);
                return Ok(false);
            }
            if is_done {
                if let (true, Some(checkpointing)) = (is_reader, &self.checkpointing) {
                    let name = checkpointing.found().map(|it| checkpointing.name(it));
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

    /// Finds the checkpoint of a claim, which another rank of the replica may have found.
    fn take_up(&mut self, claim: &Claim) -> Result<Result<(), VolumeError>, Failure> {
        let Some(checkpointing) = &mut self.checkpointing else {
            return Ok(Ok(()));
        };
        let is_known = checkpointing.found().is_some_and(|it| it.claim() == *claim);
        if is_known {
            return Ok(Ok(()));
        }
        match checkpointing.find_by_id(claim.id(), self.reporter)? {
            Ok(manifest) => {
                if !self.local_state.claim().origin.is_in_memory() {
                    self.local_state.stand_for(&manifest);
                }
                Ok(Ok(()))
            }
            Err(volume_error) => Ok(Err(volume_error)),
        }
    }

    /// Counts bytes that the reading rank gets from the volume as progress of all ranks.
    fn reading_moves(&mut self, is_reader: bool, has_moved: bool) {
        if let (Some(peers), true) = (&self.peers, has_moved) {
            peers.interrupter.reads();
        }
        if let Some(checkpointing) = &self.checkpointing {
            let io_watch = checkpointing.directory.io_watch();
            if has_moved && !is_reader {
                io_watch.advance(1);
            }
            self.reporter.volume_moves(io_watch.moves());
        }
    }
}

impl Reading {
    fn begin(checkpointing: &Checkpointing, only_checks: bool) -> Result<Self, Failure> {
        let io_watch = checkpointing.directory.io_watch();
        let manifest = checkpointing.found().cloned();
        let manifest =
            manifest.ok_or_else(|| Failure::Internal("no checkpoint found".to_owned()))?;
        Ok(Self {
            pieces: load::read(&checkpointing.directory, manifest)?,
            idle_timer: IdleTimer::new(io_watch),
            started: Instant::now(),
            moves: io_watch.moves(),
            only_checks,
            has_ended: false,
            gathered: Gathered::default(),
        })
    }

    /// Copies received bytes into the state.
    fn advance<S: State>(
        &mut self,
        checkpointing: &Checkpointing,
        state: &mut S,
    ) -> Result<Progress, Failure> {
        if self.has_ended {
            std::thread::sleep(PAUSE);
            return Ok(Progress::Reading);
        }
        match self.pieces.recv_timeout(PAUSE) {
            Ok(load::Message::Bytes(bytes)) => {
                for (offset, run) in bytes.runs().filter(|_| !self.only_checks) {
                    self.gathered.take(state, offset, run)?;
                }
                Ok(Progress::Reading)
            }
            Ok(load::Message::Damaged(volume_error)) => {
                self.has_ended = true;
                Ok(Progress::Damaged(volume_error))
            }
            Ok(load::Message::Whole) if self.only_checks => Ok(Progress::Checked),
            Ok(load::Message::Whole) => {
                self.gathered.flush(state)?;
                self.has_ended = true;
                Ok(Progress::Done)
            }
            Err(RecvTimeoutError::Disconnected) => Err(Failure::Internal(
                "the thread that reads a checkpoint panicked".to_owned(),
            )),
            Err(RecvTimeoutError::Timeout) => {
                let still = self.idle_timer.elapsed(checkpointing.directory.io_watch());
                if checkpointing.io_timeout.is_over(still) {
                    return Err(Failure::VolumeSilent {
                        dir: checkpointing.directory.root().to_owned(),
                        waited: self.started.elapsed(),
                    });
                }
                Ok(Progress::Reading)
            }
        }
    }

    fn has_moved(&mut self, checkpointing: &Checkpointing) -> bool {
        let moves = checkpointing.directory.io_watch().moves();
        std::mem::replace(&mut self.moves, moves) != moves
    }
}
