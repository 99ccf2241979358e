//! The volumes of all pods of a worker, as one of its processes uses them.

use std::io;
use std::path::Path;

use roundhouse_elastic::CheckpointId;
use roundhouse_elastic::local_copies::{Placement, Volume};

use super::directory::Directory;
use super::siblings::{Siblings, Unreachable};

/// The volume of this pod, those of the other pods of its replica, and what belongs where.
#[derive(Clone, Debug)]
pub(super) struct Volumes {
    pub(super) directory: Directory,
    /// `None` if the worker has one pod.
    pub(super) siblings: Option<Siblings>,
    pub(super) placement: Placement,
    /// Index of this pod in its replica.
    pub(super) pod: u32,
    /// The part of the state that this process has.
    pub(super) shard: u32,
}

/// Why copies were not read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VolumesError {
    /// The volume of this pod.
    #[error("{0}")]
    Own(io::Error),
    /// Another pod, or the connection to it.
    #[error(transparent)]
    Other(#[from] Unreachable),
}

impl Volumes {
    /// The complete copies in each pod.
    pub(super) fn contents(&self) -> Result<Vec<Volume>, VolumesError> {
        let Some(siblings) = &self.siblings else {
            let contents = self.directory.contents().map_err(VolumesError::Own)?;
            return Ok(vec![contents]);
        };
        let of = |pod| {
            if pod == self.pod {
                self.directory.contents().map_err(VolumesError::Own)
            } else {
                Ok(siblings.contents(pod)?)
            }
        };
        (0..siblings.num_pods()).map(of).collect()
    }

    /// Deletes copies of this pod that belong elsewhere.
    pub(super) fn sweep(&self, contents: &[Volume]) -> Result<(), VolumesError> {
        let strays = self.placement.strays(contents, self.pod);
        let removed = strays
            .into_iter()
            .try_for_each(|(shard, id)| self.directory.remove(shard, id));
        removed.map_err(VolumesError::Own)
    }

    /// Gets this process' part of a state into its own volume, if another pod has it. Returns that
    /// pod; `None` if the volume had the part.
    pub(super) fn obtain(
        &self,
        id: CheckpointId,
        contents: &[Volume],
        moves: &mut dyn FnMut(u64),
    ) -> Result<Option<u32>, VolumesError> {
        let has = |pod: &u32| {
            let volume = contents.get(*pod as usize);
            let ids = volume.and_then(|volume| volume.get(&self.shard));
            ids.is_some_and(|ids| ids.contains(&id))
        };
        let (Some(siblings), false) = (&self.siblings, has(&self.pod)) else {
            return Ok(None);
        };
        let Some(pod) = (0..siblings.num_pods()).find(has) else {
            return Ok(None);
        };
        let mut fetched = Ok(());
        let fetch = |path: &Path| {
            fetched = siblings.fetch(pod, (self.shard, id), path, moves);
            // The outer error has the reason.
            fetched.as_ref().map_err(|_| io::Error::other("")).copied()
        };
        let completed = self.directory.complete(self.shard, id, fetch);
        fetched?;
        completed.map_err(VolumesError::Own)?;
        Ok(Some(pod))
    }

    /// Lets the other places of this process' part hold a state that its own volume has.
    pub(super) fn share(
        &self,
        id: CheckpointId,
        kept: Option<CheckpointId>,
        lacking: impl IntoIterator<Item = u32>,
    ) -> Result<(), VolumesError> {
        let Some(siblings) = &self.siblings else {
            return Ok(());
        };
        let path = self.directory.path(self.shard, id);
        for pod in lacking.into_iter().filter(|pod| *pod != self.pod) {
            siblings.hold(pod, (self.shard, id), kept, &path)?;
        }
        Ok(())
    }

    /// Deletes a copy of this process' part in a pod.
    pub(super) fn delete(&self, pod: u32, id: CheckpointId) -> Result<(), VolumesError> {
        match &self.siblings {
            Some(siblings) if pod != self.pod => Ok(siblings.delete(pod, self.shard, id)?),
            _ => (self.directory.remove(self.shard, id)).map_err(VolumesError::Own),
        }
    }

    /// Deletes all copies of this process' part, first its own ones: other pods may be gone.
    pub(super) fn discard(&self) -> Result<(), VolumesError> {
        let own = self.directory.keep(self.shard, None);
        own.map_err(VolumesError::Own)?;
        for (pod, volume) in (0..).zip(self.contents()?) {
            let ids = volume.get(&self.shard).into_iter().flatten();
            ids.copied().try_for_each(|id| self.delete(pod, id))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
