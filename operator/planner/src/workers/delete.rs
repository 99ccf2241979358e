//! The one action that takes a pod away.

use crate::observed::Pod;
use crate::plan::{Action, DeleteReason};

/// Deletes the pod that was observed and no other.
pub(crate) fn delete(pod: &Pod, reason: DeleteReason) -> Action {
    Action::DeletePod {
        pod: pod.name.clone(),
        uid: pod.uid.clone(),
        reason,
    }
}
