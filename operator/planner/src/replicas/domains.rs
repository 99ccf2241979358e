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

/// The rules of a job for the domains of its pods.
#[derive(Clone, Copy, Debug)]
pub(super) struct Domains {
    mode: Option<TopologyMode>,
}

impl Domains {
    pub(super) fn of(job: &ValidatedJob) -> Self {
        Self {
            mode: job.topology_of_replicas(),
        }
    }

    /// Whether the pods of a replica belong into one domain.
    pub(super) const fn matter(self) -> bool {
        self.mode.is_some()
    }

    /// Whether pods of a replica may be in several domains if there is no room in one.
    pub(super) fn are_preferred(self) -> bool {
        self.mode == Some(TopologyMode::Preferred)
    }

    /// Whether a pod is in the domain of a replica. A domain that is not known may be any.
    pub(super) fn is_near(self, replica: &Places<'_>, pod: &Pod) -> bool {
        if self.mode.is_none() || pod.domain.is_none() {
            return true;
        }
        let present = replica.iter().flatten();
        let mut known = present.map(|it| &it.domain).filter(|it| it.is_some());
        let first = known.next();
        first.is_none_or(|first| *first == pod.domain || known.any(|it| *it == pod.domain))
    }

    /// Whether a pod may take a place in a replica.
    pub(super) fn may_join(self, index: u32, replica: &Places<'_>, pod: &Pod) -> bool {
        if self.mode != Some(TopologyMode::Required) {
            return true;
        }
        let is_bound = pod.node.is_none() && pod.replica_label.is_some_and(|it| it != index);
        !is_bound && self.is_near(replica, pod)
    }
}
