//! The gangs of a job: pods that a gang scheduler places together, each gang with a PodGroup.
//!
//! The first gang has the pods of `minReplicas` replicas, which is what the job needs to train. In
//! jobs whose replicas have several pods, each further replica is a gang of its own. Pods that were
//! placed one by one could hold the GPUs of several replicas of which none is whole.
//!
//! A pod never changes its gang. Its place in a replica may change, because pods without a place
//! are interchangeable, so a gang is a set of pods that were created together. A replacement joins
//! the gang that lacks a pod in its replica: the other pods of that gang have nodes, so it is
//! placed at once. The minimum of a gang is never above the number of its pods, since a gang that
//! lost pods to a smaller job would wait for them indefinitely.
//!
//! The further gangs are created when as many pods have nodes as the first gang needs. Two jobs
//! would otherwise hold the nodes of each other's first gang with replicas that cannot train.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use roundhouse_api::Gang;

use crate::draft::Draft;
use crate::observed::{Pod, PodPhase};
use crate::replicas::Replica;
use crate::validate::ValidatedJob;
use crate::workers::group;

/// The gang whose pods the job needs to train.
pub(crate) const FIRST: u32 = 0;

/// The gangs that a job has when all of its missing pods exist.
#[derive(Debug, Default)]
pub(crate) struct Gangs {
    /// Number of pods of each gang that has any.
    sizes: BTreeMap<u32, u32>,
    /// The gangs of new pods by the index of the pod. Pods that wait have none.
    of_new: BTreeMap<u32, u32>,
    /// Numbers that pods have.
    used: BTreeSet<u32>,
    /// The last number that a new gang got.
    last_new: u32,
}

impl Gangs {
    /// Gives a gang to each new pod. `new`: their indices in order, each with the replica for which
    /// the pod is created.
    pub(crate) fn of(draft: &Draft<'_>, new: &[(u32, Option<u32>)]) -> Self {
        let mut gangs = Self {
            sizes: present(draft),
            used: draft.pods.iter().map(|pod| pod.gang).collect(),
            ..Self::default()
        };
        if !has_several(draft.own_job) {
            gangs.of_new = new.iter().map(|(index, _)| (*index, FIRST)).collect();
            return gangs;
        }
        let pods = draft.pods_by_index();
        let mut by_replica = BTreeMap::<Option<u32>, Vec<u32>>::new();
        for (index, replica) in new {
            if let Some(replaced) = pods.get(index) {
                // The replaced pod counts in its gang already.
                gangs.of_new.insert(*index, replaced.gang);
            } else {
                by_replica.entry(*replica).or_default().push(*index);
            }
        }
        let spares = by_replica.remove(&None).unwrap_or_default();
        let mut waits = false;
        for (replica, indices) in by_replica {
            waits |= !gangs.take_in(draft, replica, indices);
        }
        // A spare would take a place in a replica whose pods wait, and the rest of them would be
        // placed without it.
        if !waits {
            gangs.add(FIRST, spares);
        }
        gangs
    }

    /// The gang in which the new pod with this index is created; `None` if the pod has to wait.
    pub(crate) fn of_new(&self, index: u32) -> Option<u32> {
        self.of_new.get(&index).copied()
    }

    /// Number of pods of a gang.
    pub(crate) fn size(&self, gang: u32) -> u32 {
        self.sizes.get(&gang).copied().unwrap_or(0)
    }

    fn add(&mut self, gang: u32, indices: Vec<u32>) {
        for index in indices {
            *self.sizes.entry(gang).or_default() += 1;
            self.of_new.insert(index, gang);
        }
    }

    /// Gives gangs to the missing pods of a replica. Returns whether they may be created.
    fn take_in(&mut self, draft: &Draft<'_>, replica: Option<u32>, indices: Vec<u32>) -> bool {
        let job = draft.own_job;
        let replica = replica.and_then(|index| draft.replicas?.all.get(&index));
        let pods: Vec<&Pod> = replica.into_iter().flat_map(Replica::present).collect();
        let mut left = Vec::new();
        for index in indices {
            match self.that_lacks_a_pod(job, &pods) {
                Some(gang) => self.add(gang, vec![index]),
                None => left.push(index),
            }
        }
        let is_new = pods.iter().all(|pod| pod.replica.is_none());
        let needed = u32::try_from(left.len()).unwrap_or(u32::MAX);
        let room = target(job, FIRST).saturating_sub(self.size(FIRST));
        if !is_new || needed < 2 || needed <= room {
            self.add(FIRST, left);
            return true;
        }
        if !are_placed(draft) {
            return false;
        }
        let number = self.next_number(draft);
        self.add(number, left);
        true
    }

    /// The gang of most of these pods that has fewer pods than it should have.
    fn that_lacks_a_pod(&self, job: &ValidatedJob, pods: &[&Pod]) -> Option<u32> {
        let num_of = |gang| pods.iter().filter(|pod| pod.gang == gang).count();
        let gangs = pods.iter().map(|pod| pod.gang);
        let short = gangs.filter(|gang| self.size(*gang) < target(job, *gang));
        short.max_by_key(|gang| (num_of(*gang), Reverse(*gang)))
    }

    /// The lowest number for a new gang that no pod has, not even a terminating one. Objects that
    /// are not the job's block no number but their own: the gang takes another one.
    fn next_number(&mut self, draft: &Draft<'_>) -> u32 {
        let first = self.last_new.saturating_add(1);
        let is_free = |number: &u32| !self.used.contains(number) && group::is_free(draft, *number);
        self.last_new = (first..=u32::MAX).find(is_free).unwrap_or(FIRST);
        self.last_new
    }
}

/// Whether the job may have gangs after its first one.
pub(crate) fn has_several(job: &ValidatedJob) -> bool {
    job.scheduling.gang != Gang::None && job.has_large_replicas()
}

/// The gang of a pod, whatever its label says in a job with one gang.
pub(crate) fn gang_of(job: &ValidatedJob, pod: &Pod) -> u32 {
    if has_several(job) { pod.gang } else { FIRST }
}

/// Number of pods that a gang should have.
pub(crate) fn target(job: &ValidatedJob, gang: u32) -> u32 {
    let replicas = if gang == FIRST { job.min_replicas } else { 1 };
    replicas.saturating_mul(job.pods_per_replica)
}

/// Number of pods of each gang that has any. Those that are about to be replaced count.
pub(crate) fn present(draft: &Draft<'_>) -> BTreeMap<u32, u32> {
    let mut sizes = BTreeMap::new();
    if has_several(draft.own_job) {
        for pod in draft.pods_by_index().values() {
            *sizes.entry(pod.gang).or_default() += 1;
        }
    }
    sizes
}

/// Whether as many pods have nodes as the job needs to train.
fn are_placed(draft: &Draft<'_>) -> bool {
    let is_placed = |pod: &&&Pod| pod.node.is_some() || pod.phase != PodPhase::Pending;
    let placed = draft.pods_by_index().values().filter(is_placed).count();
    placed >= target(draft.own_job, FIRST) as usize
}
