//! Restores the newest copy before the first generation, and begins copies at the ends of steps.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use roundhouse_elastic::{CheckpointId, Origin, local_copies};
use roundhouse_report::{say, say_error};

use super::file::{self, Unusable};
use super::{Begun, LocalCopies, Written};
use crate::checkpointing::Checkpointing;
use crate::failure::Failure;
use crate::group::Rendezvous;
use crate::local_state::LocalState;
use crate::member::Member;
use crate::state::State;
use crate::world::SavingSum;

/// Extension of a copy that could not be read.
const UNREADABLE: &str = "unreadable";
/// Bytes in a unit of messages.
const MIB: u64 = 1 << 20;

/// Why a copy was not read.
#[derive(Debug)]
enum NotRead {
    Unusable(Unusable),
    Failed(Failure),
}

impl From<Unusable> for NotRead {
    fn from(unusable: Unusable) -> Self {
        Self::Unusable(unusable)
    }
}

impl<R: Rendezvous> Member<'_, R> {
    /// Whether the job keeps copies.
    pub(crate) fn keeps_copies(&self) -> bool {
        self.copies().is_some()
    }

    pub(crate) fn copies(&self) -> Option<&LocalCopies> {
        self.checkpointing.as_ref()?.copies.as_ref()
    }

    pub(crate) fn copies_mut(&mut self) -> Option<&mut LocalCopies> {
        self.checkpointing.as_mut().and_then(copies_of)
    }

    /// Reads the newest copy of this worker into the state, if this process has no whole state in
    /// memory and has found no newer checkpoint. The process then claims the copy.
    ///
    /// # Errors
    /// [`Failure::State`] if the state was overwritten in part.
    pub(crate) fn restore_copy<S: State>(&mut self, state: &mut S) -> Result<(), Failure> {
        if self.local_state.claim().origin.is_in_memory() {
            return Ok(());
        }
        let oldest = self.checkpointing.as_ref().and_then(Checkpointing::sound);
        self.restore_from(oldest, state)
    }

    /// Reads the newest copy that all processes of this worker still have: one of them may have
    /// found its part damaged after another one had read its own.
    ///
    /// # Errors
    /// [`Failure::State`] if the state was overwritten in part.
    pub(crate) fn restore_older_copy<S: State>(&mut self, state: &mut S) -> Result<(), Failure> {
        if self.local_state.claim().origin == Origin::Live {
            return Ok(());
        }
        self.restore_from(None, state)
    }

    /// Reads the newest copy that is not older than `oldest`, unless this process has it.
    fn restore_from<S: State>(
        &mut self,
        oldest: Option<CheckpointId>,
        state: &mut S,
    ) -> Result<(), Failure> {
        let own = self.local_state.claim();
        let has = |id: CheckpointId| own.origin.is_in_memory() && own.id() == id;
        let copies = self
            .checkpointing
            .as_ref()
            .and_then(|it| it.copies.as_ref());
        let Some(copies) = copies else {
            return Ok(());
        };
        loop {
            let newest = match copies.newest(state) {
                Ok(newest) => newest,
                Err(error) => {
                    let dir = copies.settings.dir.display();
                    say_error(&format!("{dir}: local copies cannot be read: {error}"));
                    return Ok(());
                }
            };
            let Some(id) = newest.filter(|id| Some(*id) >= oldest && !has(*id)) else {
                return Ok(());
            };
            let moves = |num_bytes| self.reporter.state_moves(num_bytes);
            let unusable = match copies.read(id, state, &mut self.local_state, moves) {
                Ok(()) => {
                    let CheckpointId { generation, step } = id;
                    self.reporter.has_copy(step);
                    say(&format!(
                        "this worker has a local copy of step {step} of generation {generation}"
                    ));
                    return Ok(());
                }
                Err(NotRead::Failed(failure)) => return Err(failure),
                Err(NotRead::Unusable(unusable)) => unusable,
            };
            let path = copies.path_read(id, state);
            say_error(&format!("local copy {}: {unusable}", path.display()));
            // Without this part, an older copy is the newest whole one.
            if let Err(error) = set_aside(&path, &unusable) {
                say_error(&format!("local copy {}: {error}", path.display()));
                return Ok(());
            }
        }
    }

    /// Whether a copy begins after the step with this sum: all ranks conclude the same.
    pub(crate) fn copies_now(&self, sum: &SavingSum) -> bool {
        let step = self.local_state.position.step;
        let is_due = self.copies().is_some_and(|copies| copies.is_due_at(step));
        is_due && sum.num_copying == 0
    }

    /// Begins a copy of the state of the last committed step, if one is due.
    ///
    /// # Errors
    /// [`Failure::State`] if the state cannot be copied.
    pub(crate) fn copy_locally<S: State>(
        &mut self,
        sum: &SavingSum,
        state: &S,
    ) -> Result<(), Failure> {
        let rank = self.world()?.rank();
        let begins = self.copies_now(sum);
        let step = self.local_state.position.step;
        let copies = self.checkpointing.as_mut().and_then(copies_of);
        let Some(copies) = copies.filter(|copies| copies.is_due_at(step)) else {
            return Ok(());
        };
        if !begins {
            if copies.writes(state.layout()) {
                self.reporter.copy_skipped();
            }
            return Ok(());
        }
        let started = Instant::now();
        let head = self.local_state.chain.head();
        match copies.begin(rank, &head, &self.local_state, state)? {
            Begun::Writing => self.reporter.copy_begun(started.elapsed()),
            Begun::OfAnother => {}
            Begun::NoRoom { needed, limit } => self.reporter.copy_failed(&format!(
                "two copies of this worker's state need {} MiB, and checkpoint.local.sizeLimit is {} MiB: raise it",
                needed.div_ceil(MIB),
                limit / MIB,
            )),
            Begun::Unreadable(error) => self.reporter.copy_failed(&error.to_string()),
        }
        Ok(())
    }

    /// Reports the copy that was written meanwhile.
    pub(crate) fn report_copy(&mut self) {
        let Some(written) = self.copies_mut().and_then(LocalCopies::poll) else {
            return;
        };
        let Written {
            step,
            duration,
            result,
        } = written;
        match result {
            Ok(()) => self.reporter.copied(step, duration),
            Err(error) => self.reporter.copy_failed(&error.to_string()),
        }
    }
}

/// Removes a copy that is of no use, and renames one that cannot be read now.
fn set_aside(path: &Path, unusable: &Unusable) -> io::Result<()> {
    match unusable {
        Unusable::Io(_) => std::fs::rename(path, path.with_extension(UNREADABLE)),
        Unusable::Damaged | Unusable::Other => std::fs::remove_file(path),
    }
}

const fn copies_of(checkpointing: &mut Checkpointing) -> Option<&mut LocalCopies> {
    checkpointing.copies.as_mut()
}

impl LocalCopies {
    /// The newest whole copy of this worker.
    fn newest<S: State>(&self, state: &S) -> io::Result<Option<CheckpointId>> {
        Ok(local_copies::newest_whole(&self.of_all(state.layout())?))
    }

    /// Path of the copy that this process reads: its own part, or the whole state that the worker's
    /// first process has written.
    fn path_read<S: State>(&self, id: CheckpointId, state: &S) -> PathBuf {
        let writer = state.layout().map_or(0, |_| self.local_rank);
        self.path(writer, id)
    }

    /// Reads a copy. `moves` gets the number of bytes of each chunk.
    fn read<S: State>(
        &self,
        id: CheckpointId,
        state: &mut S,
        local_state: &mut LocalState,
        mut moves: impl FnMut(u64),
    ) -> Result<(), NotRead> {
        let path = self.path_read(id, state);
        let kind = self.kind(state).map_err(NotRead::Failed)?;
        let words = file::read(&path, &kind, |_, chunk| {
            moves(chunk.len() as u64);
            Ok::<(), NotRead>(())
        })?;
        let held = local_state.held(&words, id).ok_or(Unusable::Damaged)?;
        // From here on the state is overwritten, so that no error may leave it as it was claimed.
        file::read(&path, &kind, |at, chunk| {
            moves(chunk.len() as u64);
            state.copy_in(at, chunk).map_err(NotRead::Failed)
        })
        .map_err(|error| match error {
            NotRead::Unusable(unusable) => NotRead::Failed(Failure::State(format!(
                "local copy {}: {unusable}",
                path.display()
            ))),
            NotRead::Failed(failure) => NotRead::Failed(failure),
        })?;
        *local_state = held;
        Ok(())
    }
}
