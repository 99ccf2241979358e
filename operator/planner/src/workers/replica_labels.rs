//! Labels that name the replica of a pod, so that the scheduler places its pods in one topology
//! domain: a pod is created with the label of a replica, and attracts the others that have it.

use crate::draft::Draft;
use crate::observed::Pod;
use crate::plan::{Action, DeleteReason};
use crate::replicas::Replicas;

/// The places in replicas for which no pod is created yet.
pub(crate) struct OpenPlaces {
    /// The index of the replica of each.
    replicas: Vec<u32>,
}

impl OpenPlaces {
    pub(crate) fn of(draft: &Draft<'_>) -> Self {
        let replicas = draft.replicas;
        Self {
            replicas: replicas.map(|it| it.holes.clone()).unwrap_or_default(),
        }
    }

    /// The replica for which the pod with this index is created: that of the pod which it replaces,
    /// or one that lacks a pod.
    pub(crate) fn next_for(&mut self, draft: &Draft<'_>, index: u32) -> Option<u32> {
        let replicas = draft.replicas?;
        let replaced = replicas.pods.get(&index);
        if let Some(replica) = replaced.and_then(|pod| replicas.replica_of(pod)) {
            return Some(replica.index);
        }
        let own_replica = index / draft.own_job.pods_per_replica.max(1);
        let own = self.replicas.iter().position(|it| *it == own_replica);
        let at = own.or_else(|| (!self.replicas.is_empty()).then_some(0))?;
        Some(self.replicas.remove(at))
    }
}

/// The label that names the replica of a pod. Only in jobs with a topology domain for each replica
/// pods have one.
pub(crate) fn label(draft: &Draft<'_>, replica: Option<u32>) -> Option<u32> {
    replica.filter(|_| with_domains(draft).is_some())
}

/// Corrects the labels of pods that have got or lost a place in a replica. A pod without a node
/// keeps its label: its choice of nodes stays the one that it was created with.
pub(crate) fn correct(draft: &mut Draft<'_>) {
    let Some(replicas) = with_domains(draft) else {
        return;
    };
    let is_write = |action: &Action| {
        matches!(
            action,
            Action::IssueMembership { .. }
                | Action::PlaceInReplica { .. }
                | Action::DeletePod { .. }
        )
    };
    // Each write names the version of its pod, so of two to one pod the second fails. The others
    // come first, and the next plan corrects the labels.
    if draft.actions.iter().any(is_write) {
        return;
    }
    let placed = replicas.all.values().flat_map(|replica| {
        let index = Some(replica.index);
        replica.present().map(move |pod| (pod, index))
    });
    let surplus = replicas.surplus.iter();
    // A pod attracts others while it terminates, too.
    let misplaced = surplus.filter(|(_, reason)| *reason == DeleteReason::FitsNoReplica);
    let others = misplaced
        .map(|(pod, _)| *pod)
        .chain(replicas.spares.iter().copied());
    for (pod, replica) in placed.chain(others.map(|pod| (pod, None))) {
        if is_wrong(pod, replica) {
            draft.actions.push(Action::LabelReplica {
                pod: pod.name.clone(),
                resource_version: pod.resource_version.clone(),
                replica,
            });
        }
    }
}

/// Whether pods of this replica still lack its label.
pub(crate) fn are_wrong(draft: &Draft<'_>, replica: Option<u32>) -> bool {
    let replicas = with_domains(draft);
    let found = replicas.and_then(|it| it.all.get(&replica?));
    found.is_some_and(|it| it.present().any(|pod| is_wrong(pod, replica)))
}

fn is_wrong(pod: &Pod, replica: Option<u32>) -> bool {
    pod.replica_label != replica && pod.node.is_some()
}

/// The replicas, if each of them has a topology domain.
fn with_domains<'a>(draft: &Draft<'a>) -> Option<&'a Replicas<'a>> {
    let has_domains = draft.own_job.topology_of_replicas().is_some();
    draft.replicas.filter(|_| has_domains)
}
