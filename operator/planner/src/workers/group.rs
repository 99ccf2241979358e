//! The PodGroup of a job with a gang scheduler. It exists before the first pod, follows the number
//! of workers, and is deleted when the job is suspended or has ended, since a queue may reserve
//! room while it exists.

use std::time::Duration;

use roundhouse_api::Gang;
use roundhouse_contract::names;

use crate::draft::Draft;
use crate::group::{ObservedGroup, PodGroup, to_install};
use crate::observed::{Pod, PodPhase, Repair};
use crate::plan::Action;
use crate::validate::ValidatedJob;
use crate::workers::owned_objects::{CHANGED_AGAIN, DELETED_AGAIN, repair};

/// The PodGroup that the job needs.
///
/// Its minimum is that of the job: an elastic job trains with `minReplicas` workers, so waiting for
/// room for more would keep it from training. A rigid job has all of its workers as its minimum.
pub(crate) fn wanted(job: &ValidatedJob) -> Option<PodGroup> {
    let (queue, priority_class) = match job.scheduling.gang {
        Gang::None => return None,
        // The PodGroup of Coscheduling has neither; the scheduler takes the priority from the pods.
        Gang::Coscheduling => (None, None),
        Gang::Volcano => (job.scheduling.queue_name.clone(), priority_class(job)),
        Gang::Kubernetes => (None, priority_class(job)),
    };
    Some(PodGroup {
        min_member: job.min_replicas.saturating_mul(job.pods_per_replica),
        queue,
        priority_class,
    })
}

fn priority_class(job: &ValidatedJob) -> Option<String> {
    let pod = job.template.spec.as_ref();
    pod.and_then(|pod| pod.priority_class_name.clone())
}

/// Why a PodGroup that the job needs cannot exist, and what to install.
pub(crate) fn impossible(draft: &Draft<'_>) -> Option<String> {
    let ObservedGroup::Impossible(words) = &draft.observed.group else {
        return None;
    };
    wanted(draft.own_job)?;
    let gang = draft.job.scheduling.gang;
    Some(format!(
        "scheduling.gang {gang:?}: {words}; install {}, or use scheduling.gang None",
        to_install(gang)
    ))
}

/// Whether a PodGroup with another controller has the name that the job's must have.
pub(crate) fn is_foreign(draft: &Draft<'_>) -> bool {
    wanted(draft.own_job).is_some() && draft.observed.group == ObservedGroup::Foreign
}

/// Whether the PodGroup is terminating although the job needs one.
pub(crate) fn is_leaving(draft: &Draft<'_>) -> bool {
    let leaves = matches!(
        draft.observed.group,
        ObservedGroup::Ours { deleting: true, .. } | ObservedGroup::ForeignLeaving
    );
    leaves && !is_held(draft) && wanted(draft.own_job).is_some()
}

/// Whether running pods hold a terminating PodGroup. Kubernetes keeps and uses its PodGroup
/// until all its pods have ended, so waiting for a deletion while workers run would last
/// until the job ends.
fn is_held(draft: &Draft<'_>) -> bool {
    let holds = |pod: &Pod| {
        let has_ended = matches!(pod.phase, PodPhase::Succeeded | PodPhase::Failed);
        pod.ours && !has_ended && (!pod.deleting || pod.unreachable)
    };
    draft.job.scheduling.gang == Gang::Kubernetes
        && matches!(draft.observed.group, ObservedGroup::Ours { .. })
        && draft.pods.iter().any(holds)
}

/// How long to wait before the PodGroup is created again, because another client deletes it
/// each time. Coscheduling places a pod whose PodGroup does not exist without its gang, so no
/// pod is created either.
pub(crate) fn postponed(draft: &Draft<'_>) -> Option<(Duration, String)> {
    wanted(draft.own_job)?;
    let ObservedGroup::Missing = draft.observed.group else {
        return None;
    };
    let Repair::Later(left) = draft.observed.group_writes.deleted else {
        return None;
    };
    let name = names::pod_group(&draft.job.identity.name);
    Some((left, format!("PodGroup {name} {DELETED_AGAIN}")))
}

/// Creates the PodGroup, or repairs its drift.
pub(crate) fn keep(draft: &mut Draft<'_>) {
    let Some(group) = wanted(draft.own_job) else {
        return;
    };
    let writes = &draft.observed.group_writes;
    let (uid, due, what_happened) = match &draft.observed.group {
        ObservedGroup::Missing => (None, writes.deleted, DELETED_AGAIN),
        ObservedGroup::Ours {
            uid,
            group: existing,
            deleting,
        } if !group.is_satisfied_by(existing) && (!deleting || is_held(draft)) => {
            (Some(uid.clone()), writes.due(&group), CHANGED_AGAIN)
        }
        // The group is correct, terminating or impossible.
        ObservedGroup::Ours { .. }
        | ObservedGroup::Impossible(_)
        | ObservedGroup::Foreign
        | ObservedGroup::ForeignLeaving => return,
    };
    let name = names::pod_group(&draft.job.identity.name);
    let gang = draft.job.scheduling.gang;
    let action = Action::ApplyPodGroup { gang, group, uid };
    repair(
        draft,
        due,
        action,
        &format!("PodGroup {name}"),
        what_happened,
    );
}

/// Deletes the PodGroup, if there is one.
pub(crate) fn remove(draft: &mut Draft<'_>) {
    if let ObservedGroup::Ours {
        uid,
        group: _,
        deleting: false,
    } = &draft.observed.group
    {
        draft.actions.push(Action::DeletePodGroup {
            gang: draft.job.scheduling.gang,
            uid: uid.clone(),
        });
    }
}
