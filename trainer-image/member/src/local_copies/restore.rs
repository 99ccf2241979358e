//! Restores the newest copy of this process' worker, before a generation forms.

use std::path::Path;

use roundhouse_elastic::local_copies::Contents;
use roundhouse_elastic::{CheckpointId, Origin};
use roundhouse_report::{say, say_error};

use super::LocalCopies;
use super::copies_of;
use super::file::{self, Kind, Unusable};
use super::volumes::{Volumes, VolumesError};
use super::writer::Request;
use crate::checkpointing::Checkpointing;
use crate::failure::Failure;
use crate::group::Rendezvous;
use crate::local_state::LocalState;
use crate::member::Member;
use crate::state::State;

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
    /// Reads the newest copy of this worker into the state, if this process has no state in memory
    /// that is as new, and has found no newer checkpoint. The process then claims the copy.
    ///
    /// # Errors
    /// [`Failure::State`] if the state was overwritten in part, [`Failure::ReplicaLost`] if another
    /// pod of the replica does not answer, [`Failure::Io`] if a damaged copy cannot be removed.
    pub(crate) fn restore_copy<S: State>(&mut self, state: &mut S) -> Result<(), Failure> {
        let own = self.local_state.claim();
        // A process that waited in the lobby may have taken newer copies of another worker.
        let may_hold_newer = self.copies().is_some_and(LocalCopies::have_pairs);
        if own.origin.is_in_memory() && !may_hold_newer {
            return Ok(());
        }
        let in_memory = own.origin.is_in_memory().then(|| own.id());
        let sound = self.checkpointing.as_ref().and_then(Checkpointing::sound);
        self.restore_from(in_memory.max(sound), state)
    }

    /// Reads the newest copy that all processes of this worker still have: one of them may have
    /// found its part damaged after another one had read its own.
    ///
    /// # Errors
    /// Those of [`Self::restore_copy`].
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
        let mut moves = |num_bytes| self.reporter.state_moves(num_bytes);
        loop {
            let found = unless_broken(newest_of(&volumes), "local copies cannot be read")?;
            let Some((contents, newest)) = found else {
                return Ok(());
            };
            let Some(id) = newest.filter(|id| Some(*id) >= oldest && !has(*id)) else {
                return Ok(());
            };
            let obtained = volumes.obtain(id, &contents, &mut moves);
            let Some(source) = unless_broken(obtained, "a local copy cannot be fetched")? else {
                return Ok(());
            };
            let kind = copies.kind(state)?;
            let path = volumes.directory.path(volumes.shard, id);
            let unusable = match read(&path, &kind, id, state, &mut self.local_state, &mut moves) {
                Ok(()) => {
                    self.reporter.has_copy(id.step);
                    say_copy(id, source);
                    if copies.writes(state.layout()) && volumes.has_other_places() {
                        copies.request(Request::Share { id, volumes });
                    }
                    return Ok(());
                }
                Err(NotRead::Failed(failure)) => return Err(failure),
                Err(NotRead::Unusable(unusable)) => unusable,
            };
            say_error(&format!("local copy {}: {unusable}", path.display()));
            match (source, &unusable) {
                // That this volume cannot be read says nothing about the copy in the other pod.
                (Some(_), Unusable::Io(_)) => return Ok(()),
                (Some(pod), Unusable::Damaged | Unusable::Other) => {
                    volumes.delete(pod, id).map_err(failure)?;
                }
                (None, _) => {}
            }
            // Without this part, an older copy may be the newest whole one.
            set_aside(&volumes, id, &unusable).map_err(failure)?;
        }
    }
}

/// Deletes strays. Returns what each pod had before, and the newest whole state.
fn newest_of(volumes: &Volumes) -> Result<(Vec<Contents>, Option<CheckpointId>), VolumesError> {
    let contents = volumes.contents()?;
    volumes.sweep(&contents)?;
    let newest = volumes.placement.newest_whole(&contents);
    Ok((contents, newest))
}

fn say_copy(id: CheckpointId, source: Option<u32>) {
    let CheckpointId { generation, step } = id;
    let source = source.map_or_else(String::new, |pod| format!(", from pod {pod}"));
    say(&format!(
        "this worker has a local copy of step {step} of generation {generation}{source}"
    ));
}

/// `None` if the volume of this pod has failed, which is logged: the newest checkpoint then counts.
fn unless_broken<T>(result: Result<T, VolumesError>, what: &str) -> Result<Option<T>, Failure> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error @ VolumesError::Own { .. }) => {
            say_error(&format!("{what}: {error}"));
            Ok(None)
        }
        Err(error) => Err(failure(error)),
    }
}

/// A sibling that does not answer has ended, or will end with this process.
fn failure(error: VolumesError) -> Failure {
    match error {
        VolumesError::Own { path, error } => Failure::Io { path, error },
        VolumesError::Other(error) => Failure::ReplicaLost(error.to_string()),
    }
}

/// Removes a copy that is of no use, and renames one that cannot be read now.
fn set_aside(volumes: &Volumes, id: CheckpointId, unusable: &Unusable) -> Result<(), VolumesError> {
    let (directory, shard) = (&volumes.directory, volumes.shard);
    volumes.own(match unusable {
        Unusable::Io(_) => directory.set_aside(shard, id),
        Unusable::Damaged | Unusable::Other => directory.remove(shard, id),
    })
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
