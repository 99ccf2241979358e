//! Releases a failed topology domain. Kubernetes keeps deleted pods on nodes that do not answer,
//! and the scheduler would place new pods beside them, in a domain where none can run.

use crate::draft::Draft;
use crate::observed::Pod;
use crate::plan::Action;

/// Marks each such pod, so that it attracts no other pods.
pub(crate) fn mark(draft: &mut Draft<'_>) {
    if draft.job.scheduling.topology_key.is_none() {
        return;
    }
    let stays = |pod: &&Pod| pod.ours && pod.deleting && pod.unreachable && pod.node.is_some();
    let draws = draft.pods.iter().filter(stays);
    for pod in draws.filter(|pod| !pod.left_domain) {
        draft.actions.push(Action::LeaveDomain {
            pod: pod.name.clone(),
            resource_version: pod.resource_version.clone(),
        });
    }
}
