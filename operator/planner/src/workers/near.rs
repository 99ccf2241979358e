//! Lets the scheduler place the pods of a replica in one topology domain: a pod is created with the
//! label of a replica, and attracts the others with this label.

use crate::draft::Draft;
use crate::plan::Action;

/// The replicas that pods are created for.
pub(crate) struct Near {
    /// For each missing pod that none is created for yet, the index of its replica.
    holes: Vec<u32>,
}

impl Near {
    pub(crate) fn of(draft: &Draft<'_>) -> Self {
        let replicas = draft.replicas.filter(|_| has_domains(draft));
        Self {
            holes: replicas.map(|it| it.holes.clone()).unwrap_or_default(),
        }
    }

    /// The replica near which the pod with this index is created: that of the pod which it
    /// replaces, or one that lacks a pod.
    pub(crate) fn replica_for(&mut self, draft: &Draft<'_>, index: u32) -> Option<u32> {
        let replicas = draft.replicas.filter(|_| has_domains(draft))?;
        let replaced = replicas.pods.get(&index);
        if let Some(replica) = replaced.and_then(|pod| replicas.replica_of(pod)) {
            return Some(replica.index);
        }
        let own = index / draft.own_job.pods_per_replica.max(1);
        let own = self.holes.iter().position(|hole| *hole == own);
        let hole = own.or_else(|| (!self.holes.is_empty()).then_some(0))?;
        Some(self.holes.remove(hole))
    }
}

/// Corrects the labels of pods that have got or lost a place in a replica. A pod without a node
/// keeps its label: its choice of nodes stays the one that it was created with.
pub(crate) fn label(draft: &mut Draft<'_>) {
    let Some(replicas) = draft.replicas.filter(|_| has_domains(draft)) else {
        return;
    };
    let is_write = |action: &Action| {
        matches!(
            action,
            Action::IssueMembership { .. } | Action::PlaceInReplica { .. }
        )
    };
    // Only one write of a plan to a pod succeeds, and these are more urgent.
    if draft.actions.iter().any(is_write) {
        return;
    }
    let placed = replicas.all.values().flat_map(|replica| {
        let index = Some(replica.index);
        replica.present().map(move |pod| (pod, index))
    });
    let spares = replicas.spares.iter().map(|pod| (*pod, None));
    for (pod, replica) in placed.chain(spares) {
        let is_wrong = pod.replica_label != replica && pod.node.is_some();
        if is_wrong {
            draft.actions.push(Action::LabelReplica {
                pod: pod.name.clone(),
                resource_version: pod.resource_version.clone(),
                replica,
            });
        }
    }
}

fn has_domains(draft: &Draft<'_>) -> bool {
    draft.own_job.topology_of_replicas().is_some()
}
