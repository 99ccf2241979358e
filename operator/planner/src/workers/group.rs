//! The PodGroups of a job with a gang scheduler, one for each of its [`gangs`](super::gangs). They
//! exist before the first pod, follow the number of workers, and are deleted when the job is
//! suspended or has ended, since a queue may reserve room while they exist.

use std::collections::BTreeSet;
use std::time::Duration;

use roundhouse_api::Gang;
use roundhouse_contract::names;

use crate::draft::Draft;
use crate::group::{GroupWrites, ObservedGroup, PodGroup, to_install};
use crate::observed::{Pod, PodPhase, Repair};
use crate::plan::Action;
use crate::validate::ValidatedJob;
use crate::workers::gangs::{self, FIRST, Gangs, gang_of, target};
use crate::workers::owned_objects::{CHANGED_AGAIN, DELETED_AGAIN, repair};

static MISSING: ObservedGroup = ObservedGroup::Missing;
static UNWRITTEN: GroupWrites = GroupWrites {
    repaired_to: None,
    changed: Repair::Now,
    deleted: Repair::Now,
};

/// The PodGroup of a gang that has this number of pods.
///
/// The minimum of the first gang is that of the job: an elastic job trains with `minReplicas`
/// workers, so waiting for room for more would keep it from training. A rigid job has all of its
/// workers as its minimum.
fn wanted(job: &ValidatedJob, gang: u32, size: u32) -> Option<PodGroup> {
    let (queue, priority_class) = match job.scheduling.gang {
        Gang::None => return None,
        // The PodGroup of Coscheduling has neither; the scheduler takes the priority from the pods.
        Gang::Coscheduling => (None, None),
        Gang::Volcano => (job.scheduling.queue_name.clone(), priority_class(job)),
        Gang::Kubernetes => (None, priority_class(job)),
    };
    let target = target(job, gang);
    Some(PodGroup {
        min_member: match size {
            // It gets its pods later, or its pods are not counted by gang.
            0 => target,
            size => target.min(size),
        },
        queue,
        priority_class,
    })
}

fn priority_class(job: &ValidatedJob) -> Option<String> {
    let pod = job.template.spec.as_ref();
    pod.and_then(|pod| pod.priority_class_name.clone())
}

fn needs_groups(draft: &Draft<'_>) -> bool {
    draft.own_job.scheduling.gang != Gang::None
}

fn observed<'a>(draft: &Draft<'a>, gang: u32) -> &'a ObservedGroup {
    if gang == FIRST {
        return &draft.observed.group;
    }
    let other = draft.observed.other_groups.get(&gang);
    other.map_or(&MISSING, |other| &other.observed)
}

fn writes<'a>(draft: &Draft<'a>, gang: u32) -> &'a GroupWrites {
    if gang == FIRST {
        return &draft.observed.group_writes;
    }
    let other = draft.observed.other_groups.get(&gang);
    other.map_or(&UNWRITTEN, |other| &other.writes)
}

fn name(draft: &Draft<'_>, gang: u32) -> String {
    names::pod_group(&draft.job.identity.name, gang)
}

/// The gangs that need a PodGroup now: the first one, and those that have pods.
fn needed(draft: &Draft<'_>) -> BTreeSet<u32> {
    let present = gangs::present(draft);
    let all = needs_groups(draft).then_some(FIRST);
    all.into_iter().chain(present.into_keys()).collect()
}

/// Why a PodGroup that the job needs cannot exist, and what to install.
pub(crate) fn impossible(draft: &Draft<'_>) -> Option<String> {
    let ObservedGroup::Impossible(words) = &draft.observed.group else {
        return None;
    };
    if !needs_groups(draft) {
        return None;
    }
    let gang = draft.job.scheduling.gang;
    Some(format!(
        "scheduling.gang {gang:?}: {words}; install {}, or use scheduling.gang None",
        to_install(gang)
    ))
}

/// The name of a PodGroup that the job needs but that has another controller.
pub(crate) fn foreign(draft: &Draft<'_>) -> Option<String> {
    let is_foreign = |gang: &u32| *observed(draft, *gang) == ObservedGroup::Foreign;
    let found = needed(draft).into_iter().find(is_foreign)?;
    Some(name(draft, found))
}

/// Whether this is the name of a PodGroup that the job can do without: that of a gang which has no
/// pods and may take another number.
pub(crate) fn is_avoidable(draft: &Draft<'_>, taken: &str) -> bool {
    let name = taken.strip_prefix(TAKEN);
    let gang = name.and_then(|name| names::gang_of_pod_group(&draft.job.identity.name, name));
    gang.is_some_and(|gang| !needed(draft).contains(&gang))
}

/// Prefix of the names of PodGroups in the list of taken names.
const TAKEN: &str = "PodGroup ";

/// Whether a new gang may have this number: its PodGroup can be created now, or is left from an
/// earlier gang.
pub(crate) fn is_free(draft: &Draft<'_>, gang: u32) -> bool {
    let taken = format!("{TAKEN}{}", name(draft, gang));
    match observed(draft, gang) {
        ObservedGroup::Missing => {
            let is_postponed = matches!(writes(draft, gang).deleted, Repair::Later(_));
            !is_postponed && !draft.observed.taken.contains(&taken)
        }
        ObservedGroup::Ours { deleting, .. } => !deleting,
        ObservedGroup::Impossible(_) | ObservedGroup::Foreign | ObservedGroup::ForeignLeaving => {
            false
        }
    }
}

/// Whether the PodGroup of a gang is terminating although the job needs it.
pub(crate) fn is_leaving(draft: &Draft<'_>, gang: u32) -> bool {
    let leaves = matches!(
        observed(draft, gang),
        ObservedGroup::Ours { deleting: true, .. } | ObservedGroup::ForeignLeaving
    );
    leaves && !is_held(draft, gang) && needs_groups(draft)
}

/// Whether running pods hold a terminating PodGroup. Kubernetes keeps and uses its PodGroup
/// until all its pods have ended, so waiting for a deletion while workers run would last
/// until the job ends.
fn is_held(draft: &Draft<'_>, gang: u32) -> bool {
    let holds = |pod: &Pod| {
        let has_ended = matches!(pod.phase, PodPhase::Succeeded | PodPhase::Failed);
        let is_in_it = gang_of(draft.own_job, pod) == gang;
        pod.ours && is_in_it && !has_ended && (!pod.deleting || pod.unreachable)
    };
    draft.job.scheduling.gang == Gang::Kubernetes
        && matches!(observed(draft, gang), ObservedGroup::Ours { .. })
        && draft.pods.iter().any(holds)
}

/// How long to wait before a PodGroup is created again, because another client deletes it
/// each time. Coscheduling places a pod whose PodGroup does not exist without its gang, so no
/// pod is created either.
pub(crate) fn postponed(draft: &Draft<'_>) -> Option<(Duration, String)> {
    needed(draft).into_iter().find_map(|gang| {
        let ObservedGroup::Missing = observed(draft, gang) else {
            return None;
        };
        let Repair::Later(left) = writes(draft, gang).deleted else {
            return None;
        };
        let name = name(draft, gang);
        Some((left, format!("PodGroup {name} {DELETED_AGAIN}")))
    })
}

/// Creates the PodGroups of the gangs that have pods or get the first ones now, repairs their
/// drift, and deletes those of gangs that are gone.
pub(crate) fn keep(draft: &mut Draft<'_>, gangs: &Gangs, of_new: &BTreeSet<u32>) {
    let mut needed = needed(draft);
    if needed.is_empty() {
        return;
    }
    needed.extend(of_new);
    for gang in &needed {
        keep_one(draft, *gang, gangs.size(*gang));
    }
    let others: Vec<u32> = draft.observed.other_groups.keys().copied().collect();
    for gang in others.into_iter().filter(|gang| !needed.contains(gang)) {
        remove_one(draft, gang);
    }
}

fn keep_one(draft: &mut Draft<'_>, number: u32, size: u32) {
    let Some(group) = wanted(draft.own_job, number, size) else {
        return;
    };
    let writes = writes(draft, number);
    let (uid, due, what_happened) = match observed(draft, number) {
        ObservedGroup::Missing => (None, writes.deleted, DELETED_AGAIN),
        ObservedGroup::Ours {
            uid,
            group: existing,
            deleting,
        } if !group.is_satisfied_by(existing) && (!deleting || is_held(draft, number)) => {
            (Some(uid.clone()), writes.due(&group), CHANGED_AGAIN)
        }
        // The group is correct, terminating or impossible.
        ObservedGroup::Ours { .. }
        | ObservedGroup::Impossible(_)
        | ObservedGroup::Foreign
        | ObservedGroup::ForeignLeaving => return,
    };
    let object = format!("PodGroup {}", name(draft, number));
    let action = Action::ApplyPodGroup {
        gang: draft.job.scheduling.gang,
        number,
        group,
        uid,
    };
    repair(draft, due, action, &object, what_happened);
}

/// Deletes all PodGroups of the job.
pub(crate) fn remove(draft: &mut Draft<'_>) {
    remove_one(draft, FIRST);
    let others: Vec<u32> = draft.observed.other_groups.keys().copied().collect();
    for gang in others {
        remove_one(draft, gang);
    }
}

fn remove_one(draft: &mut Draft<'_>, number: u32) {
    if let ObservedGroup::Ours {
        uid,
        group: _,
        deleting: false,
    } = observed(draft, number)
    {
        let action = Action::DeletePodGroup {
            gang: draft.job.scheduling.gang,
            number,
            uid: uid.clone(),
        };
        draft.actions.push(action);
    }
}
