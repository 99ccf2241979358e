//! The objects of a job: Service, NetworkPolicy, PodGroup, and one pod for each worker.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use roundhouse_api::{
    BlockReason, BlockedWrite, ConditionReason, ConditionType, EventReason, NetworkPolicyMode,
};
use roundhouse_contract::names;

use crate::built;
use crate::draft::{Draft, event};
use crate::failures::{nodes, replacements};
use crate::observed::{Pod, Presence, Repair};
use crate::plan::{Action, DeleteReason, MAX_ACTIONS, PlanReason};
use crate::replicas::Replica;
use crate::status::bounded;
use crate::workers::delete::delete;
use crate::workers::gangs::{FIRST, Gangs, has_several};
use crate::workers::replace::{Fate, fate};
use crate::workers::replica_labels::{self, OpenPlaces};
use crate::workers::{group, kueue};

/// Maximum number of pods that one plan creates. Between two plans the job is observed again: it
/// may have been deleted meanwhile.
const BATCH: usize = 32;
const TRY_AGAIN: Duration = Duration::from_secs(5);
const SURE: Duration = Duration::from_secs(60);
/// Prefix of the names of pods in the list of taken names.
const POD: &str = "Pod ";
/// The message about an object that another client deletes each time.
pub(crate) const DELETED_AGAIN: &str = "was deleted again after the operator recreated it: the API server's audit log names the client \
                                        that deletes it";
/// The message about an object that another client or a webhook changes each time.
pub(crate) const CHANGED_AGAIN: &str = "was changed again after the operator had repaired it: its metadata.managedFields name the client \
                                        that changes it, unless it is a mutating webhook";

/// Why no pod can be created.
pub(crate) struct Barrier {
    condition: ConditionReason,
    event: EventReason,
    plan: PlanReason,
    blocked: BlockReason,
    message: String,
    look_again: Duration,
}

/// Why no pod can be created, if so: the PodGroup cannot be created, or a name is taken.
pub(crate) fn barrier(draft: &Draft<'_>) -> Option<Barrier> {
    if draft.rejection.is_some() {
        return None;
    }
    let name_taken = |message| Barrier {
        condition: ConditionReason::NameTaken,
        event: EventReason::NameTaken,
        plan: PlanReason::NameTaken,
        blocked: BlockReason::NameTaken,
        message,
        // The object that has the name lacks the operator's labels, so no watch shows its deletion.
        look_again: TRY_AGAIN,
    };
    let no_scheduler = |message| Barrier {
        condition: ConditionReason::GangSchedulerMissing,
        event: EventReason::GangSchedulerMissing,
        plan: PlanReason::GangSchedulerMissing,
        blocked: BlockReason::GangSchedulerMissing,
        message,
        // When the kind is installed, its watch wakes the job.
        look_again: SURE,
    };
    let postponed = |(left, message)| Barrier {
        condition: ConditionReason::WaitingForWorkers,
        event: EventReason::RepairReverted,
        plan: PlanReason::WaitingForWorkers,
        blocked: BlockReason::RepairReverted,
        message,
        look_again: left,
    };
    let taken = name_taken_by(draft).map(name_taken);
    taken
        .or_else(|| group::impossible(draft).map(no_scheduler))
        .or_else(|| group::postponed(draft).map(postponed))
}

/// The message if a foreign object has the name of the job's Service, NetworkPolicy or PodGroup. A
/// foreign pod blocks nothing: the worker takes the name of its next attempt.
fn name_taken_by(draft: &Draft<'_>) -> Option<String> {
    let name = names::service(&draft.job.identity.name);
    let observed = draft.observed;
    let is_foreign = |presence| presence == Presence::Foreign;
    let service = is_foreign(observed.service).then(|| format!("Service {name}"));
    let policy = (is_isolated(draft) && is_foreign(observed.network_policy))
        .then(|| format!("NetworkPolicy {name}"));
    let group = group::foreign(draft).map(|name| format!("PodGroup {name}"));
    let unlabelled = observed.taken.iter().filter(|it| !it.starts_with(POD));
    let mut unlabelled = unlabelled.filter(|it| !group::is_avoidable(draft, it));
    let taken = service
        .or(policy)
        .or(group)
        .or_else(|| unlabelled.next().cloned())?;
    Some(format!(
        "{taken} exists and does not belong to this job: delete or rename it"
    ))
}

/// Reports that no pod can be created. Existing workers continue, and a generation that is being
/// formed is formed.
pub(crate) fn report_barrier(
    draft: &mut Draft<'_>,
    barrier: Barrier,
    reason: PlanReason,
) -> PlanReason {
    let Barrier {
        condition,
        event: reason_of_event,
        plan,
        blocked: reason_of_block,
        message,
        look_again,
    } = barrier;
    let kind = ConditionType::Running;
    let blocked = BlockedWrite::new(reason_of_block, bounded(message.clone()));
    if !draft.observed.status.blocked.contains(&blocked) {
        draft.events.push(event(reason_of_event, message.clone()));
    }
    draft.status.blocked.push(blocked);
    draft.requeue(look_again);
    let running = draft.status.condition(kind);
    let trains = running.filter(|running| running.status == "True");
    if let Some(trains) = trains {
        let message = format!("{}; {message}", trains.message);
        draft.running(true, ConditionReason::Training, message);
        return reason;
    }
    let is_forming = matches!(
        reason,
        PlanReason::RaisingGeneration | PlanReason::IssuingMembership
    );
    if is_forming {
        return reason;
    }
    draft.running(false, condition, message);
    plan
}

/// Creates missing objects. A job that is not accepted gets only the objects that its workers need
/// to reach each other.
pub(crate) fn make(draft: &mut Draft<'_>) {
    if draft.rejection.is_none() {
        make_surroundings(draft);
        make_workers(draft);
    } else if !draft.members.workers.is_empty() {
        make_surroundings(draft);
    }
}

fn make_surroundings(draft: &mut Draft<'_>) {
    let (service, policy) = (draft.observed.service, draft.observed.network_policy);
    let repair = |version| Action::RepairService { version };
    keep(draft, service, "Service", Action::CreateService, repair);
    if is_isolated(draft) {
        let repair = |version| Action::RepairNetworkPolicy { version };
        let make = Action::CreateNetworkPolicy;
        keep(draft, policy, "NetworkPolicy", make, repair);
    }
}

/// Creates an object, or repairs its drift.
fn keep(
    draft: &mut Draft<'_>,
    presence: Presence,
    kind: &str,
    make: Action,
    rebuild: impl FnOnce(u64) -> Action,
) {
    let object = || format!("{kind} {}", names::service(&draft.job.identity.name));
    match presence {
        Presence::Ours | Presence::Foreign => {}
        Presence::Missing => draft.actions.push(make),
        Presence::Deleted { repair: due } => {
            let object = object();
            repair(draft, due, make, &object, DELETED_AGAIN);
        }
        Presence::Drifted {
            version,
            repair: due,
        } => {
            let object = object();
            repair(draft, due, rebuild(version), &object, CHANGED_AGAIN);
        }
    }
}

/// Repairs an object, unless the last repair was undone and the pause after it is not over.
/// `what_happened` is the end of a sentence that begins with the object.
pub(crate) fn repair(
    draft: &mut Draft<'_>,
    due: Repair,
    action: Action,
    object: &str,
    what_happened: &str,
) {
    match due {
        Repair::Now => draft.actions.push(action),
        Repair::Again => {
            draft.actions.push(action);
            let message = format!("{object} {what_happened}");
            draft
                .events
                .push(event(EventReason::RepairReverted, message));
        }
        Repair::Later(pause) => draft.requeue(pause),
    }
}

/// Creates pods, and their PodGroups before them. A replacement is created before the pod that it
/// replaces is deleted, except in a group with a fixed number of pods.
fn make_workers(draft: &mut Draft<'_>) {
    // A PodGroup that is being deleted would leave new pods without a group.
    if group::is_leaving(draft, FIRST) {
        return;
    }
    let (mut indices, mut replaced) = (absent(draft), Vec::new());
    let workers: Vec<(u32, &Pod)> = draft
        .pods_by_index()
        .iter()
        .map(|(i, p)| (*i, *p))
        .collect();
    let surplus = surplus(draft);
    for (index, pod) in workers {
        if surplus.contains(&*pod.uid) {
            continue;
        }
        match fate(draft, pod) {
            Fate::Stays => {}
            Fate::Later(wait) => draft.requeue(wait),
            Fate::Goes(reason) => {
                indices.push(index);
                replaced.push((index, delete(pod, reason)));
            }
        }
    }
    indices.sort_unstable();
    let room = kueue::room(draft);
    let most = BATCH.min(room.unwrap_or(BATCH));
    // The size of a gang counts all of its pods. Without further gangs it does not matter.
    if !has_several(draft.own_job) {
        indices.truncate(most);
    }
    let mut places = OpenPlaces::of(draft);
    let new: Vec<(u32, Option<u32>)> = indices
        .into_iter()
        .map(|index| (index, places.next_for(draft, index)))
        .collect();
    let gangs = Gangs::of(draft, &new);
    let may_come = new
        .into_iter()
        .filter_map(|(index, replica)| Some((index, (replica, gangs.of_new(index)?))));
    // The labels of the pods that a pod should be near come before it.
    let created: BTreeMap<u32, (Option<u32>, u32)> = may_come
        .take(most)
        .filter(|(_, (replica, _))| !replica_labels::are_wrong(draft, *replica))
        .filter(|(_, (_, gang))| !group::is_leaving(draft, *gang))
        .collect();
    let new_gangs = created.values().map(|(_, gang)| *gang).collect();
    group::keep(draft, &gangs, &new_gangs);
    let in_use = if created.is_empty() {
        HashSet::new()
    } else {
        names_in_use(draft)
    };
    let (avoid, lost) = (nodes::avoided(draft), nodes::lost(draft));
    let (pods, job) = (draft.pods, draft.own_job);
    let built_like = if created.is_empty() {
        None
    } else {
        built::record_of_run(pods, &job.built_from, job.generation)
    };
    for (index, (replica, gang)) in &created {
        draft.actions.push(Action::CreateWorker {
            index: *index,
            attempt: next_attempt(draft, *index, &in_use),
            replica: replica_labels::label(draft, *replica),
            gang: *gang,
            avoid: avoid.clone(),
            lost: lost.clone(),
            built_like: built_like.clone(),
        });
    }
    let mut gone: Vec<Action> = replaced
        .into_iter()
        .filter(|(at, _)| room.is_some() || created.contains_key(at))
        .map(|(_, action)| action)
        .collect();
    gone.truncate(MAX_ACTIONS.saturating_sub(draft.actions.len()));
    replacements::note_going(draft, gone.len(), created.len());
    draft.actions.extend(gone);
}

/// Deletes surplus workers with the reason of each. A pod that fits no replica stays until it
/// attracts no others, and while nothing takes its place (`makes_no_pods`).
pub(crate) fn remove_surplus(draft: &mut Draft<'_>, makes_no_pods: bool) {
    let beside = draft.replicas.into_iter().flat_map(|it| &it.surplus);
    for (pod, reason) in draft.members.surplus.iter().chain(beside) {
        let attracts = pod.node.is_some() && pod.replica_label.is_some();
        if *reason == DeleteReason::FitsNoReplica && (attracts || makes_no_pods) {
            continue;
        }
        draft.actions.push(delete(pod, *reason));
    }
}

/// UIDs of pods that go with their replica, so that no others take their places.
fn surplus<'a>(draft: &Draft<'a>) -> HashSet<&'a str> {
    let Some(replicas) = draft.replicas else {
        return HashSet::new();
    };
    let is_wanted = |replica: &Replica<'_>| draft.members.workers.contains_key(&replica.index);
    let dismissed = replicas.all.values().filter(|it| !is_wanted(it));
    let placed = dismissed.flat_map(Replica::present);
    let beside = replicas.surplus.iter().map(|(pod, _)| *pod);
    placed.chain(beside).map(|pod| &*pod.uid).collect()
}

fn is_isolated(draft: &Draft<'_>) -> bool {
    draft.job.network_policy == NetworkPolicyMode::Isolated
}

/// Names of all existing pods, foreign ones included: on a dead node the pod of an earlier job of
/// the same name may stay indefinitely.
fn names_in_use<'a>(draft: &Draft<'a>) -> HashSet<&'a str> {
    let pods = draft.pods.iter().map(|pod| pod.name.as_str());
    let unlabelled = draft.observed.taken.iter();
    let unlabelled = unlabelled.filter_map(|it| it.strip_prefix(POD));
    pods.chain(unlabelled).collect()
}

/// The lowest attempt that no known pod of this worker has had yet and whose name is free.
fn next_attempt(draft: &Draft<'_>, index: u32, in_use: &HashSet<&str>) -> u32 {
    let own = draft.pods.iter();
    let own = own.filter(|pod| pod.ours && pod.index == Some(index));
    let highest = own.map(|pod| pod.attempt).max();
    let first = highest.map_or(0, |highest| highest.wrapping_add(1));
    let job = &draft.job.identity.name;
    let is_free = |attempt: &u32| !in_use.contains(&*names::worker_pod(job, index, *attempt));
    (first..=u32::MAX).find(is_free).unwrap_or(first)
}

/// Indices for the missing workers: the lowest that are free.
fn absent(draft: &Draft<'_>) -> Vec<u32> {
    let workers = draft.pods_by_index();
    let missing = (draft.own_job.num_pods() as usize).saturating_sub(workers.len());
    let free = (0..).filter(|index| !workers.contains_key(index));
    free.take(missing).collect()
}
