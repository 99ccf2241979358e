//! Restores the newest copy before the first generation, and begins copies at the ends of steps.

use std::io;
use std::path::Path;
use std::time::Instant;

use roundhouse_elastic::local_copies::Volume;
use roundhouse_elastic::{CheckpointId, Origin};
use roundhouse_report::{say, say_error};

use super::file::{self, Kind, Unusable};
use super::siblings::Unreachable;
use super::volumes::{Volumes, VolumesError};
use super::writer::Request;
use super::{Begun, Ended, LocalCopies, Written};
use crate::checkpointing::Checkpointing;
use crate::failure::Failure;
use crate::group::Rendezvous;
use crate::local_state::LocalState;
use crate::member::Member;
use crate::state::State;
use crate::world::SavingSum;

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
        let Some(copies) = self.checkpointing.as_mut().and_then(copies_of) else {
            return Ok(());
        };
        let volumes = copies.volumes(state.layout());
        let dir = volumes.directory.root().display();
        let mut moves = |num_bytes| self.reporter.state_moves(num_bytes);
        loop {
            let newest = match newest(&volumes) {
                Ok(newest) => newest,
                Err(VolumesError::Own(error)) => {
                    say_error(&format!("{dir}: local copies cannot be read: {error}"));
                    return Ok(());
                }
                Err(VolumesError::Other(error)) => return Err(lost(&error)),
            };
            let (contents, newest) = newest;
            let Some(id) = newest.filter(|id| Some(*id) >= oldest && !has(*id)) else {
                return Ok(());
            };
            let from = match volumes.obtain(id, &contents, &mut moves) {
                Ok(from) => from,
                Err(VolumesError::Own(error)) => return Err(failed(&volumes, id, error)),
                Err(VolumesError::Other(error)) => return Err(lost(&error)),
            };
            let kind = copies.kind(state)?;
            let path = volumes.directory.path(volumes.shard, id);
            let unusable = match read(&path, &kind, id, state, &mut self.local_state, &mut moves) {
                Ok(()) => {
                    let CheckpointId { generation, step } = id;
                    self.reporter.has_copy(step);
                    let whence = from.map_or_else(String::new, |pod| format!(", from pod {pod}"));
                    say(&format!(
                        "this worker has a local copy of step {step} of generation {generation}{whence}"
                    ));
                    let places = volumes.placement.pods_of(volumes.shard);
                    if copies.writes(state.layout()) && places.count() > 1 {
                        copies.request(Request::Share { id, volumes });
                    }
                    return Ok(());
                }
                Err(NotRead::Failed(failure)) => return Err(failure),
                Err(NotRead::Unusable(unusable)) => unusable,
            };
            say_error(&format!("local copy {}: {unusable}", path.display()));
            // Without this part, an older copy may be the newest whole one.
            let set_aside = set_aside(&volumes, id, &unusable)
                .and_then(|()| from.map_or(Ok(()), |pod| volumes.delete(pod, id)));
            match set_aside {
                Ok(()) => {}
                Err(VolumesError::Own(error)) => {
                    say_error(&format!("local copy {}: {error}", path.display()));
                    return Ok(());
                }
                Err(VolumesError::Other(error)) => return Err(lost(&error)),
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
        let num_copies = copies.num_copies();
        match copies.begin(rank, &head, &self.local_state, state)? {
            Begun::Writing => self.reporter.copy_begun(started.elapsed()),
            Begun::OfAnother => {}
            Begun::NoRoom { needed, limit } => self.reporter.copy_failed(&format!(
                "{num_copies} copies of the state of this pod need {} MiB, and checkpoint.local.sizeLimit is {} MiB: raise it",
                needed.div_ceil(MIB),
                limit / MIB,
            )),
        }
        Ok(())
    }

    /// Reports what the thread has done meanwhile.
    pub(crate) fn report_copy(&mut self) {
        match self.copies_mut().and_then(LocalCopies::poll) {
            None | Some(Ended::Shared(Ok(()))) => {}
            Some(Ended::Shared(Err(error))) => self.reporter.copy_failed(&error.to_string()),
            Some(Ended::Written(Written {
                step,
                duration,
                result,
            })) => match result {
                Ok(()) => self.reporter.copied(step, duration),
                Err(error) => self.reporter.copy_failed(&error.to_string()),
            },
        }
    }
}

const fn copies_of(checkpointing: &mut Checkpointing) -> Option<&mut LocalCopies> {
    checkpointing.copies.as_mut()
}

/// What each pod has, without strays, and the newest whole state.
fn newest(volumes: &Volumes) -> Result<(Vec<Volume>, Option<CheckpointId>), VolumesError> {
    let contents = volumes.contents()?;
    volumes.sweep(&contents)?;
    let newest = volumes.placement.newest_whole(&contents);
    Ok((contents, newest))
}

/// The failure of a process whose sibling does not answer: it has ended, or will end with this one.
fn lost(error: &Unreachable) -> Failure {
    Failure::ReplicaLost(error.to_string())
}

fn failed(volumes: &Volumes, id: CheckpointId, error: io::Error) -> Failure {
    Failure::Io {
        path: volumes.directory.path(volumes.shard, id),
        error,
    }
}

/// Removes a copy that is of no use, and renames one that cannot be read now.
fn set_aside(volumes: &Volumes, id: CheckpointId, unusable: &Unusable) -> Result<(), VolumesError> {
    let (directory, shard) = (&volumes.directory, volumes.shard);
    let set_aside = match unusable {
        Unusable::Io(_) => directory.set_aside(shard, id),
        Unusable::Damaged | Unusable::Other => directory.remove(shard, id),
    };
    set_aside.map_err(VolumesError::Own)
}

/// Reads a copy. `moves` gets the number of bytes of each chunk.
fn read<S: State>(
    path: &Path,
    kind: &Kind,
    id: CheckpointId,
    state: &mut S,
    local_state: &mut LocalState,
    moves: &mut dyn FnMut(u64),
) -> Result<(), NotRead> {
    let words = file::read(path, kind, |_, chunk| {
        moves(chunk.len() as u64);
        Ok::<(), NotRead>(())
    })?;
    let held = local_state.held(&words, id).ok_or(Unusable::Damaged)?;
    // From here on the state is overwritten, so that no error may leave it as it was claimed.
    file::read(path, kind, |at, chunk| {
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
