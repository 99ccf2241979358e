//! The volumes of all pods of a worker, as one of its processes uses them.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use roundhouse_elastic::CheckpointId;
use roundhouse_elastic::local_copies::{Contents, Placement, has};

use super::directory::Directory;
use super::holder::Holder;
use super::message::Operation;
use super::peer::{Peer, RequestFailed};
use super::transfer;

/// The volume of this pod, those of the other pods of its replica, and what belongs where.
#[derive(Clone, Debug)]
pub(super) struct Volumes {
    pub(super) directory: Directory,
    /// The processes with the local rank of this one in all pods of the replica, by their index;
    /// empty if it has one pod.
    pub(super) siblings: Vec<Peer>,
    /// The pod that holds second copies for a worker of one pod.
    pub(super) holder: Option<Holder>,
    pub(super) placement: Placement,
    /// Index of this pod in its replica.
    pub(super) pod: u32,
    /// The part of the state that this process has.
    pub(super) shard: u32,
}

/// Why copies were not read or written.
#[derive(Debug, thiserror::Error)]
pub(super) enum VolumesError {
    /// The volume of this pod.
    #[error("{}: {error}", path.display())]
    Own { path: PathBuf, error: io::Error },
    /// Another pod, or the connection to it.
    #[error(transparent)]
    Other(#[from] RequestFailed),
}

impl Volumes {
    /// The complete copies in each pod.
    pub(super) fn contents(&self) -> Result<Vec<Contents>, VolumesError> {
        (0..self.num_pods())
            .map(|pod| self.contents_of(pod))
            .collect()
    }

    fn num_pods(&self) -> u32 {
        u32::try_from(self.siblings.len().max(1)).unwrap_or(u32::MAX)
    }

    /// `None` for the pod of this process.
    fn sibling(&self, pod: u32) -> Option<&Peer> {
        let sibling = self.siblings.get(pod as usize);
        sibling.filter(|_| pod != self.pod)
    }

    fn contents_of(&self, pod: u32) -> Result<Contents, VolumesError> {
        match self.sibling(pod) {
            Some(sibling) => Ok(sibling.contents()?),
            None => self.own(self.directory.contents()),
        }
    }

    /// Whether another pod holds copies of this process' part.
    pub(super) fn has_other_places(&self) -> bool {
        self.placement.pods_of(self.shard).count() > 1
    }

    /// Deletes copies of this pod that belong elsewhere.
    pub(super) fn sweep(&self, contents: &[Contents]) -> Result<(), VolumesError> {
        let strays = self.placement.strays(contents, self.pod);
        let removed = strays
            .into_iter()
            .try_for_each(|(shard, id)| self.directory.remove(shard, id));
        self.own(removed)
    }

    /// Deletes the copies of this process' part in its own volume, except one.
    pub(super) fn keep(&self, kept: Option<CheckpointId>) -> Result<(), VolumesError> {
        self.own(self.directory.keep(self.shard, kept))
    }

    /// Deletes the copies of this process' part that are older than `id`, except one. A process
    /// that ends may just have saved its part of a newer state.
    pub(super) fn keep_newer(
        &self,
        id: CheckpointId,
        kept: Option<CheckpointId>,
    ) -> Result<(), VolumesError> {
        self.own(self.directory.keep_newer(self.shard, id, kept))
    }

    /// Writes a copy of this process' part into its own volume, see [`Directory::complete`].
    pub(super) fn put(
        &self,
        id: CheckpointId,
        write: impl FnOnce(&Path) -> io::Result<()>,
    ) -> Result<(), VolumesError> {
        let completed = self.directory.complete(self.shard, id, write);
        completed.map_err(|error| VolumesError::Own {
            path: self.directory.path(self.shard, id),
            error,
        })
    }

    /// Gets this process' part of a state into its own volume, if another pod has it. Returns that
    /// pod; `None` if the volume had the part. Makes room first.
    pub(super) fn obtain(
        &self,
        id: CheckpointId,
        contents: &[Contents],
        moves: &mut dyn FnMut(u64),
    ) -> Result<Option<u32>, VolumesError> {
        let has = |pod: &u32| has(&contents[*pod as usize], self.shard, id);
        let source = (0..self.num_pods()).find(has).filter(|_| !has(&self.pod));
        let Some((pod, sibling)) = source.and_then(|pod| Some((pod, self.sibling(pod)?))) else {
            return Ok(None);
        };
        let kept = self.placement.kept_beside(id, contents);
        self.keep(kept)?;
        let (mut stream, num_bytes) = sibling.fetch((self.shard, id))?;
        self.put(id, |path| {
            transfer::receive(&mut stream, path, num_bytes, moves)
        })?;
        Ok(Some(pod))
    }

    /// Stores a copy that its own volume has in those other places of this process' part which lack
    /// it. `contents` are what the pods had before.
    pub(super) fn share(
        &self,
        id: CheckpointId,
        kept: Option<CheckpointId>,
        contents: &[Contents],
    ) -> Result<(), VolumesError> {
        let lacking = self.placement.missing(contents, self.shard, id);
        for (pod, sibling) in lacking.filter_map(|pod| Some((pod, self.sibling(pod)?))) {
            let (file, num_bytes) = self.open(id)?;
            let operation = Operation::Store {
                shard: self.shard,
                id,
                kept,
                strays: self.placement.strays(contents, pod),
                num_bytes,
            };
            sibling.store(operation, (file, num_bytes))?;
        }
        Ok(())
    }

    /// Opens the copy of this process' part in its own volume. Returns its length, too.
    pub(super) fn open(&self, id: CheckpointId) -> Result<(File, u64), VolumesError> {
        let path = self.directory.path(self.shard, id);
        let opened = transfer::open(&path);
        opened.map_err(|error| VolumesError::Own { path, error })
    }

    /// Deletes a copy of this process' part in a pod.
    pub(super) fn delete(&self, pod: u32, id: CheckpointId) -> Result<(), VolumesError> {
        match self.sibling(pod) {
            Some(sibling) => Ok(sibling.delete(self.shard, id)?),
            None => self.own(self.directory.remove(self.shard, id)),
        }
    }

    /// Deletes all copies of this process' part in all pods that answer.
    ///
    /// # Errors
    /// The first error, after an attempt in each pod.
    pub(super) fn discard(&self) -> Result<(), VolumesError> {
        let others = (0..self.num_pods()).filter(|pod| *pod != self.pod);
        let discard = |pod| match self.sibling(pod) {
            Some(sibling) => Ok(sibling.discard(self.shard)?),
            None => self.keep(None),
        };
        let results: Vec<Result<(), VolumesError>> = std::iter::once(self.pod)
            .chain(others)
            .map(discard)
            .chain(self.holder.iter().map(|holder| holder.discard(self.shard)))
            .collect();
        results.into_iter().collect()
    }

    /// Names the volume of this pod in an error.
    pub(super) fn own<T>(&self, result: io::Result<T>) -> Result<T, VolumesError> {
        result.map_err(|error| VolumesError::Own {
            path: self.directory.root().to_owned(),
            error,
        })
    }
}

#[cfg(test)]
mod tests;
