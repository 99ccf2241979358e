//! The objects of a job: Service, NetworkPolicy, and one pod for each worker.

use std::time::Duration;

use roundhouse_api::NetworkPolicyMode;
use roundhouse_contract::{Mode, names};

use crate::decide::{Draft, event};
use crate::members::has_succeeded;
use crate::observed::{Pod, PodPhase, Presence};
use crate::plan::{Action, DeleteReason, EventType, PlanReason};

/// Most pods of one plan: between two the job is looked at again, which may be gone by then.
const BATCH: u32 = 32;
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
            .push(event(EventType::Warning, "NameTaken", message.clone()));
    }
    draft.running(false, "NameTaken", message);
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
    let (mut replaced, mut created) = (Vec::new(), 0);
    for index in 0..draft.job.replicas {
        let worker = draft.members.workers.get(&index).copied();
        if let Some(pod) = worker {
            if !is_spent(draft, pod) {
                continue;
            }
            replaced.push(delete(pod, DeleteReason::Replaced));
        }
        let attempt = draft
            .members
            .attempts
            .get(&index)
            .map_or(0, |highest| highest + 1);
        draft.actions.push(Action::CreateWorker { index, attempt });
        created += 1;
        if created == BATCH {
            break;
        }
    }
    draft.actions.append(&mut replaced);
    for pod in &draft.members.surplus {
        let wanted = pod.index.is_some_and(|index| index < draft.job.replicas);
        let reason = if wanted {
            DeleteReason::Surplus
        } else {
            DeleteReason::ScaledDown
        };
        draft.actions.push(delete(pod, reason));
    }
}

/// Whether a pod cannot take part any more: it failed for good, or ended without having trained, and a
/// completed pod is never restarted. A script that completed is needed again if its peers have not.
fn is_spent(draft: &Draft<'_>, pod: &Pod) -> bool {
    let is_needed_again =
        || draft.job.program.mode() == Mode::Restart && !draft.members.are_whole();
    match pod.phase {
        PodPhase::Failed => true,
        PodPhase::Succeeded => !has_succeeded(pod) || is_needed_again(),
        // A sidecar may keep its pod running.
        PodPhase::Pending | PodPhase::Running => has_succeeded(pod) && is_needed_again(),
    }
}

/// Deletes the pod that was observed and no other.
pub(crate) fn delete(pod: &Pod, reason: DeleteReason) -> Action {
    Action::DeletePod {
        pod: pod.name.clone(),
        uid: pod.uid.clone(),
        reason,
    }
}
