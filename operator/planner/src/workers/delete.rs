//! The one action that takes a pod away.

use crate::observed::Pod;
use crate::plan::{Action, DeleteReason};

/// Deletes the pod that was observed and no other.
pub(crate) fn delete(pod: &Pod, reason: DeleteReason) -> Action {
    Action::DeletePod {
        pod: pod.name.clone(),
        uid: pod.uid.clone(),
        resource_version: match reason {
            // Whatever it looks like: a suspended job has no pods, and an outdated pod is made again.
            DeleteReason::Suspended | DeleteReason::Outdated => None,
            DeleteReason::JobEnded
            | DeleteReason::ScaledDown
            | DeleteReason::Replaced
            | DeleteReason::BadNode
            | DeleteReason::NodeLost
            | DeleteReason::AgentSilent
            | DeleteReason::Surplus => Some(pod.resource_version.clone()),
        },
        reason,
    }
}
