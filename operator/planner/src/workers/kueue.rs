//! Jobs whose pods are a group of Kueue. Kueue admits a fixed number of pods and deletes each one
//! above it, the newest first. So a replacement waits until Kueue no longer counts the pod that it
//! replaces.

use roundhouse_contract::gang;

use crate::draft::Draft;
use crate::observed::{Pod, PodPhase};
use crate::plan::Action;
use crate::worker_state::has_succeeded;

/// Number of pods that Kueue would still admit; `None` if the job is not in a group.
pub(super) fn room(draft: &Draft<'_>) -> Option<usize> {
    if !is_grouped(draft) {
        return None;
    }
    let pods = draft.pods.iter();
    let counted = pods.filter(|pod| pod.ours && counts(pod)).count();
    Some((draft.own_job.num_pods() as usize).saturating_sub(counted))
}

/// Why a missing worker is not created: Kueue counts a pod that has completed, or that it holds,
/// until the group ends.
pub(crate) fn full(draft: &Draft<'_>) -> Option<String> {
    let wanted = draft.own_job.num_pods() - draft.own_job.spares;
    let is_missing = draft.pods_by_index().len() < wanted as usize;
    (is_missing && room(draft) == Some(0)).then(|| {
        "a worker is missing, and Kueue admits no other pod: it counts those that have completed or are held until the group ends; \
         to train with all workers, run `kubectl roundhouse stop` and submit the job again"
            .to_owned()
    })
}

/// Marks the group as ended after the end of the job. Kueue frees the quota of a group by
/// itself only if all its pods succeed, which spares and failed workers never do, and until
/// then it keeps deleted pods.
pub(crate) fn end_group(draft: &mut Draft<'_>) {
    let pods = || draft.pods.iter().filter(|pod| pod.ours);
    let succeeded = pods().filter(|pod| has_succeeded(pod)).count();
    let is_known =
        succeeded >= draft.own_job.num_pods() as usize || pods().any(|pod| pod.ends_group);
    if !is_grouped(draft) || is_known {
        return;
    }
    // Mark the pod that is most likely to stay: Kueue reads the mark only while the pod exists.
    let is_over = |pod: &Pod| matches!(pod.phase, PodPhase::Succeeded | PodPhase::Failed);
    let lasts = |pod: &&Pod| (pod.deleting, !is_over(pod), pod.index);
    if let Some(pod) = pods().min_by_key(lasts) {
        draft.actions.push(Action::EndGroup {
            pod: pod.name.clone(),
            resource_version: pod.resource_version.clone(),
        });
    }
}

fn is_grouped(draft: &Draft<'_>) -> bool {
    let meta = draft.job.template.metadata.as_ref();
    let labels = meta.and_then(|meta| meta.labels.as_ref());
    labels.is_some_and(|labels| labels.contains_key(gang::KUEUE_GROUP))
}

/// Whether Kueue counts a pod (`isPodRunnableOrSucceeded` in its `pod_controller.go`).
fn counts(pod: &Pod) -> bool {
    let will_never_run = pod.deleting && pod.node.is_none();
    pod.phase != PodPhase::Failed && !will_never_run
}
