//! The objects of a job: Service, NetworkPolicy, and one pod for each worker.

use std::time::Duration;

use roundhouse_api::{ConditionReason, EventReason, NetworkPolicyMode};
use roundhouse_contract::names;

use crate::draft::{Draft, event};
use crate::nodes;
use crate::observed::{Pod, Presence};
use crate::plan::{Action, DeleteReason, PlanReason};
use crate::replace::{Fate, fate};

/// Most pods of one plan: between two the job is looked at again, which may be gone by then.
const BATCH: usize = 32;
const TRY_AGAIN: Duration = Duration::from_secs(5);

/// Somebody else's object bears a name that the job needs: nothing is touched, and the user is told.
pub(crate) fn name_taken(draft: &mut Draft<'_>) -> Option<PlanReason> {
    let job = &draft.job.key.name;
    let taken = if let Some(taken) = &draft.observed.taken {
        taken.clone()
    } else if draft.observed.service == Presence::Foreign {
        format!("Service {}", names::service(job))
    } else if draft.observed.network_policy == Presence::Foreign {
        format!("NetworkPolicy {}", names::service(job))
    } else {
        let ours = format!("{job}-worker-");
        let in_the_way = |pod: &&Pod| !pod.ours && pod.name.starts_with(&ours);
        let foreign = draft.observed.pods.iter().find(in_the_way)?;
        format!("pod {}", foreign.name)
    };
    let message = format!("{taken} exists and does not belong to this job: delete or rename it");
    let told = draft
        .status
        .conditions
        .first()
        .is_some_and(|first| first.message == message);
    if !told {
        draft
            .events
            .push(event(EventReason::NameTaken, message.clone()));
    }
    draft.running(false, ConditionReason::NameTaken, message);
    // Its holder bears no label of ours, so nobody says when it is gone.
    draft.requeue(TRY_AGAIN);
    Some(PlanReason::NameTaken)
}

/// Makes what is missing and removes what is too much. A replacement is created before the pod that
/// it replaces is deleted.
pub(crate) fn make(draft: &mut Draft<'_>) {
    if draft.observed.service == Presence::Missing {
        draft.actions.push(Action::ApplyService);
    }
    let isolated = draft.job.network_policy == NetworkPolicyMode::Isolated;
    if isolated && draft.observed.network_policy == Presence::Missing {
        draft.actions.push(Action::ApplyNetworkPolicy);
    }
    let (mut indices, mut replaced) = (absent(draft), Vec::new());
    let workers: Vec<(u32, &Pod)> = draft
        .members
        .workers
        .iter()
        .map(|(i, p)| (*i, *p))
        .collect();
    for (index, pod) in workers {
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
    indices.truncate(BATCH);
    for index in &indices {
        let highest = draft.members.attempts.get(index);
        draft.actions.push(Action::CreateWorker {
            index: *index,
            attempt: highest.map_or(0, |highest| highest + 1),
            avoid: nodes::avoided(draft),
        });
    }
    let now = replaced.into_iter().filter(|(at, _)| indices.contains(at));
    draft.actions.extend(now.map(|(_, action)| action));
    for (pod, reason) in &draft.members.surplus {
        draft.actions.push(delete(pod, *reason));
    }
}

/// Indices of workers that are wanted and have no pod: the lowest that are free.
fn absent(draft: &Draft<'_>) -> Vec<u32> {
    let workers = &draft.members.workers;
    let missing = (draft.job.replicas as usize).saturating_sub(workers.len());
    let free = (0..).filter(|index| !workers.contains_key(index));
    free.take(missing).collect()
}

/// Deletes the pod that was observed and no other.
pub(crate) fn delete(pod: &Pod, reason: DeleteReason) -> Action {
    Action::DeletePod {
        pod: pod.name.clone(),
        uid: pod.uid.clone(),
        reason,
    }
}
