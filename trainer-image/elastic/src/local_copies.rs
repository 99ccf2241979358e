//! Which copies of the state the pods of a worker keep in their volumes.
//!
//! Each process that holds a part of the state (a *shard*) writes copies of it into the volume of
//! its pod. Another pod of its worker, on another node, may hold a second copy. A state is *whole*
//! if each of its parts is in some volume, and *safe* if each part is in all of its places: then it
//! stays whole if any pod is lost. The processes keep the newest safe state while they write the
//! next one, so a death or the loss of a pod in between costs no more than the next copy.

use std::collections::{BTreeMap, BTreeSet};

use crate::checkpoint::CheckpointId;

#[cfg(test)]
mod tests;

/// The complete copies in the volume of one pod, by shard.
pub type Contents = BTreeMap<u32, BTreeSet<CheckpointId>>;

/// Where the copies of a worker's shards belong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Number of parts of the state; 1 if each process has all of it.
    pub num_shards: u32,
    /// Number of consecutive shards that a pod has.
    pub shards_per_pod: u32,
    /// For each pod, the index of the pod that holds second copies of its shards. A pod holds those
    /// of at most one other pod.
    pub holders: Vec<Option<u32>>,
}

impl Placement {
    /// Indices of the pods in which a copy of the shard belongs: its own pod, and its holder.
    pub fn pods_of(&self, shard: u32) -> impl Iterator<Item = u32> {
        let own = shard / self.shards_per_pod.max(1);
        let holder = self.holders.get(own as usize).copied().flatten();
        std::iter::once(own).chain(holder)
    }

    /// Returns the newest state of which each part is in some volume; `None` if there is none.
    /// `volumes` are those of the pods, by their index.
    #[must_use]
    pub fn newest_whole(&self, volumes: &[Contents]) -> Option<CheckpointId> {
        self.newest(|shard, id| is_in_any(volumes, shard, id), volumes)
    }

    /// Returns the newest state of which each part is in all of its places.
    #[must_use]
    pub fn newest_safe(&self, volumes: &[Contents]) -> Option<CheckpointId> {
        self.newest(
            |shard, id| self.missing(volumes, shard, id).next().is_none(),
            volumes,
        )
    }

    /// Returns the state to keep while the next one is written: the newest safe one, or the newest
    /// whole one if none is safe.
    #[must_use]
    pub fn kept(&self, volumes: &[Contents]) -> Option<CheckpointId> {
        self.newest_safe(volumes)
            .or_else(|| self.newest_whole(volumes))
    }

    /// Returns the state to keep beside the state `id`, which a process is about to read: a safe
    /// one, or the newest whole one before it, in case `id` is damaged.
    #[must_use]
    pub fn kept_beside(&self, id: CheckpointId, volumes: &[Contents]) -> Option<CheckpointId> {
        let is_whole = |shard, other| other < id && is_in_any(volumes, shard, other);
        let safe = self.newest_safe(volumes).filter(|safe| *safe != id);
        safe.or_else(|| self.newest(is_whole, volumes))
    }

    /// Indices of the pods that should have a part of a state and lack it.
    pub fn missing(
        &self,
        volumes: &[Contents],
        shard: u32,
        id: CheckpointId,
    ) -> impl Iterator<Item = u32> {
        let lacks = move |pod: &u32| {
            let volume = volumes.get(*pod as usize);
            !volume.is_some_and(|volume| has(volume, shard, id))
        };
        self.pods_of(shard).filter(lacks)
    }

    /// Selects the copies in the volume of a pod that belong elsewhere and may be deleted: the pods
    /// of a worker and their holders change. A copy of the state to keep stays until that state is
    /// safe without it.
    #[must_use]
    pub fn strays(&self, volumes: &[Contents], pod: u32) -> Vec<(u32, CheckpointId)> {
        let is_safe = self.newest_safe(volumes).is_some();
        let needed = self.newest_whole(volumes).filter(|_| !is_safe);
        let own = volumes.get(pod as usize).into_iter().flatten();
        let strays = own.filter(|(shard, _)| !self.pods_of(**shard).any(|it| it == pod));
        strays
            .flat_map(|(shard, ids)| ids.iter().map(|id| (*shard, *id)))
            .filter(|(_, id)| Some(*id) != needed)
            .collect()
    }

    fn newest(
        &self,
        counts: impl Fn(u32, CheckpointId) -> bool,
        volumes: &[Contents],
    ) -> Option<CheckpointId> {
        let of_first = volumes.iter().filter_map(|volume| volume.get(&0));
        let known: BTreeSet<CheckpointId> = of_first.flatten().copied().collect();
        let is_whole = |id: &CheckpointId| (0..self.num_shards).all(|shard| counts(shard, *id));
        known.into_iter().rev().find(is_whole)
    }
}

fn is_in_any(volumes: &[Contents], shard: u32, id: CheckpointId) -> bool {
    volumes.iter().any(|volume| has(volume, shard, id))
}

/// Whether a volume has a copy.
#[must_use]
pub fn has(volume: &Contents, shard: u32, id: CheckpointId) -> bool {
    volume.get(&shard).is_some_and(|ids| ids.contains(&id))
}
