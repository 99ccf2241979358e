//! Jobs whose pods are a group of Kueue. It admits a fixed number of pods and deletes each one above it, the newest first,
//! so a replacement waits until the pod that it replaces does not count any more.

use roundhouse_contract::gang;

use crate::draft::Draft;
use crate::observed::{Pod, PodPhase};

/// How many pods can be made now. `None`: nobody counts them.
pub(super) fn room(draft: &Draft<'_>) -> Option<usize> {
    let labels = draft.job.template.metadata.as_ref()?.labels.as_ref()?;
    if !labels.contains_key(gang::KUEUE_GROUP) {
        return None;
    }
    let pods = draft.observed.pods.iter();
    let counted = pods.filter(|pod| pod.ours && counts(pod)).count();
    Some((draft.job.num_pods() as usize).saturating_sub(counted))
}

/// As Kueue counts (`isPodRunnableOrSucceeded` in its `pod_controller.go`).
fn counts(pod: &Pod) -> bool {
    let will_never_run = pod.deleting && pod.node.is_none();
    pod.phase != PodPhase::Failed && !will_never_run
}
