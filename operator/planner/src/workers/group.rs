//! The PodGroup of a job with a gang scheduler. It exists before the first pod, follows the number of workers, and goes
//! when the job is suspended or has ended: a queue may hold room for as long as it is there.

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
/// Its minimum is that of the job: an elastic job trains with `minReplicas` workers, so waiting for room for more would
/// keep it from training. A rigid job has all of its workers as its minimum.
pub(crate) fn wanted(job: &ValidatedJob) -> Option<PodGroup> {
    let (queue, priority_class) = match job.scheduling.gang {
        Gang::None => return None,
        // Its PodGroups have neither. It takes the priority from the pods.
        Gang::Coscheduling => (None, None),
        Gang::Volcano => (job.scheduling.queue_name.clone(), priority_class(job)),
        Gang::Kubernetes => (None, priority_class(job)),
    };
    Some(PodGroup {
        min_member: job.min_replicas,
        queue,
        priority_class,
    })
}

fn priority_class(job: &ValidatedJob) -> Option<String> {
    let pod = job.template.spec.as_ref();
    pod.and_then(|pod| pod.priority_class_name.clone())
}

/// Why there can be no PodGroup, if the job needs one: what to install.
pub(crate) fn impossible(draft: &Draft<'_>) -> Option<String> {
    let ObservedGroup::Impossible(words) = &draft.observed.group else {
        return None;
    };
    wanted(draft.job)?;
    let gang = draft.job.scheduling.gang;
    Some(format!(
        "scheduling.gang {gang:?}: {words}; install {}, or use scheduling.gang None",
        to_install(gang)
    ))
}

/// Whether somebody else's PodGroup has the name that the job's must have.
pub(crate) fn is_foreign(draft: &Draft<'_>) -> bool {
    wanted(draft.job).is_some() && draft.observed.group == ObservedGroup::Foreign
}

/// Whether the PodGroup is about to go, although the job needs another one.
pub(crate) fn is_leaving(draft: &Draft<'_>) -> bool {
    let leaves = matches!(
        draft.observed.group,
        ObservedGroup::Ours { deleting: true, .. } | ObservedGroup::ForeignLeaving
    );
    leaves && !is_held(draft) && wanted(draft.job).is_some()
}

/// Kubernetes keeps its PodGroup, and uses it, until all of its pods have ended. One that somebody deletes while the job has workers
/// would be waited for until the job ends.
fn is_held(draft: &Draft<'_>) -> bool {
    let holds = |pod: &Pod| {
        let has_ended = matches!(pod.phase, PodPhase::Succeeded | PodPhase::Failed);
        pod.ours && !has_ended && (!pod.deleting || pod.unreachable)
    };
    draft.job.scheduling.gang == Gang::Kubernetes
        && matches!(draft.observed.group, ObservedGroup::Ours { .. })
        && draft.observed.pods.iter().any(holds)
}

/// How long the PodGroup is not created yet, because another client deletes it each time. Coscheduling places a pod whose
/// PodGroup does not exist without its gang, so no pod is created either.
pub(crate) fn postponed(draft: &Draft<'_>) -> Option<(Duration, String)> {
    wanted(draft.job)?;
    let ObservedGroup::Missing = draft.observed.group else {
        return None;
    };
    let Repair::Later(left) = draft.observed.group_writes.deleted else {
        return None;
    };
    let name = names::pod_group(&draft.job.identity.name);
    Some((left, format!("PodGroup {name} {DELETED_AGAIN}")))
}

/// Creates the PodGroup, or brings it up to date.
pub(crate) fn keep(draft: &mut Draft<'_>) {
    let Some(group) = wanted(draft.job) else {
        return;
    };
    let writes = &draft.observed.group_writes;
    let (uid, due, what_happened) = match &draft.observed.group {
        ObservedGroup::Missing => (None, writes.deleted, DELETED_AGAIN),
        ObservedGroup::Ours {
            uid,
            group: said,
            deleting,
        } if !group.is_said_by(said) && (!deleting || is_held(draft)) => {
            (Some(uid.clone()), writes.due(&group), CHANGED_AGAIN)
        }
        // It is right, or about to go, or cannot be.
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
