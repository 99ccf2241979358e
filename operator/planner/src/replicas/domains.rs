//! Which pods may be in one replica, if the job has a `scheduling.topologyKey`: its pods are in one
//! topology domain if there is room, or always (`topologyMode: Required`).
//!
//! The scheduler places a pod near those whose label names the same replica. A pod keeps the choice
//! of nodes that it was created with, so with `Required` a pod without a node only fits the replica
//! of its label.

use roundhouse_api::TopologyMode;

use crate::observed::Pod;
use crate::validate::ValidatedJob;

/// The pods of a replica by their places; `None` for a missing one.
type Places<'a> = [Option<&'a Pod>];

/// How strictly the pods of a replica share a topology domain.
#[derive(Clone, Copy, Debug)]
pub(super) struct DomainRule {
    mode: Option<TopologyMode>,
}

impl DomainRule {
    pub(super) fn of(job: &ValidatedJob) -> Self {
        Self {
            mode: job.topology_of_replicas(),
        }
    }

    /// Whether the pods of a replica should share a domain.
    pub(super) const fn is_set(self) -> bool {
        self.mode.is_some()
    }

    /// Whether pods of a replica may be in several domains if there is no room in one.
    pub(super) fn is_preferred(self) -> bool {
        self.mode == Some(TopologyMode::Preferred)
    }

    /// Whether the pod is in a domain of one of the replica's pods. True if its own domain, or all
    /// of theirs, are unknown.
    pub(super) fn is_near(self, replica: &Places<'_>, pod: &Pod) -> bool {
        if self.mode.is_none() || pod.domain.is_none() {
            return true;
        }
        let domains = replica.iter().flatten().map(|it| &it.domain);
        let mut known = domains.filter(|it| it.is_some()).peekable();
        known.peek().is_none() || known.any(|it| *it == pod.domain)
    }

    /// Whether the pod may take a place in the replica with this index. With `Required`, a pod
    /// whose domain is unknown fits only the replica that its label names.
    pub(super) fn may_join(self, index: u32, replica: &Places<'_>, pod: &Pod) -> bool {
        if self.mode != Some(TopologyMode::Required) {
            return true;
        }
        if pod.domain.is_none() {
            return pod.replica_label == Some(index);
        }
        self.is_near(replica, pod)
    }
}
