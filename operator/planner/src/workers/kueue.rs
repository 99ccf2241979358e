//! Jobs whose pods are a group of Kueue. It admits a fixed number of pods and deletes each one above it, the newest first,
//! so a replacement waits until the pod that it replaces does not count any more.

use roundhouse_contract::gang;

use crate::draft::Draft;
use crate::generation::worker::has_succeeded;
use crate::observed::{Pod, PodPhase};
use crate::plan::Action;

/// How many pods can be made now. `None`: nobody counts them.
pub(super) fn room(draft: &Draft<'_>) -> Option<usize> {
    if !is_grouped(draft) {
        return None;
    }
    let pods = draft.observed.pods.iter();
    let counted = pods.filter(|pod| pod.ours && counts(pod)).count();
    Some((draft.job.num_pods() as usize).saturating_sub(counted))
}

/// Why a worker that is missing is not made: Kueue counts a pod that has completed, or that it holds, until the group ends.
pub(crate) fn full(draft: &Draft<'_>) -> Option<String> {
    let is_missing = draft.members.workers.len() < draft.job.replicas as usize;
    (is_missing && room(draft) == Some(0)).then(|| {
        "a worker is missing, and Kueue admits no other pod: it counts those that have completed or are held until the group ends; \
         to train with all workers, run `kubectl roundhouse stop` and submit the job again"
            .to_owned()
    })
}

/// Says after the end of the job that its group gets no new pods. Kueue frees the quota of a group by itself only if all of its
/// pods succeed, as spares and workers that failed never do, and it keeps pods that are deleted until then.
pub(crate) fn end_group(draft: &mut Draft<'_>) {
    let pods = || draft.observed.pods.iter().filter(|pod| pod.ours);
    let succeeded = pods().filter(|pod| has_succeeded(pod)).count();
    let is_known = succeeded >= draft.job.num_pods() as usize || pods().any(|pod| pod.ends_group);
    if !is_grouped(draft) || is_known {
        return;
    }
    // The one that is most likely to stay: Kueue reads it for as long as the pod is there.
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

/// As Kueue counts (`isPodRunnableOrSucceeded` in its `pod_controller.go`).
fn counts(pod: &Pod) -> bool {
    let will_never_run = pod.deleting && pod.node.is_none();
    pod.phase != PodPhase::Failed && !will_never_run
}
