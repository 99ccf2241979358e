//! The action that deletes a pod.

use crate::observed::Pod;
use crate::plan::{Action, DeleteReason};

/// Deletes exactly the pod that was observed.
pub(crate) fn delete(pod: &Pod, reason: DeleteReason) -> Action {
    Action::DeletePod {
        pod: pod.name.clone(),
        uid: pod.uid.clone(),
        resource_version: match reason {
            // The state of the pod does not matter: a suspended job has no pods, and an outdated
            // pod is created again.
            DeleteReason::Suspended | DeleteReason::Outdated => None,
            DeleteReason::JobEnded
            | DeleteReason::ScaledDown
            | DeleteReason::FitsNoReplica
            | DeleteReason::Replaced
            | DeleteReason::BadNode
            | DeleteReason::NodeLost
            | DeleteReason::AgentSilent
            | DeleteReason::Surplus => Some(pod.resource_version.clone()),
        },
        reason,
    }
}
