//! The end of a job, for good, and what is cleaned up after it.

use std::time::Duration;

use jiff::Timestamp;
use roundhouse_api::{
    CleanPodPolicy, ConditionReason, ConditionType, EventReason, TrainingJobStatus,
};

use crate::draft::{Draft, event};
use crate::generation::worker::{has_succeeded, is_alive};
use crate::life::{deadlines, ttl};
use crate::observed::{Pod, PodPhase};
use crate::plan::{DeleteReason, PlanReason};
use crate::program::Program;
use crate::told::progress;
use crate::told::status::{counted, time_left};
use crate::workers::children::delete;
use crate::workers::group;

/// How long members may take to end after the first of them.
const ENDING: Duration = Duration::from_secs(30);

/// After the end: cleaning up, again and again until it is done, and nothing else.
pub(crate) fn after_the_end(draft: &mut Draft<'_>) -> Option<PlanReason> {
    if !draft.status.is_terminal() {
        return None;
    }
    // The status of a job that has ended is history. That a later edit was seen is not: tools would wait for it for ever.
    draft.status = TrainingJobStatus {
        observed_generation: Some(draft.job.generation),
        ..draft.observed.status.clone()
    };
    let failed = draft.status.is_true(ConditionType::Failed);
    for pod in draft
        .observed
        .pods
        .iter()
        .filter(|pod| pod.ours && !pod.deleting)
    {
        // A pod whose container has completed is about to be Succeeded: it stays, with its log.
        let completed = pod
            .container
            .termination
            .as_ref()
            .is_some_and(|end| end.exit_code == 0 && end.restarts == pod.container.restarts);
        let active = matches!(pod.phase, PodPhase::Pending | PodPhase::Running);
        let runs = active && (!completed || pod.sidecar_runs);
        let goes = match draft.job.clean_pod_policy {
            CleanPodPolicy::All => true,
            CleanPodPolicy::Running => runs,
            // A container of a failed job would be restarted for ever, and a worker that waits for a node
            // or for peers would wait for ever: both would keep a GPU.
            CleanPodPolicy::None => runs && (failed || !completed),
        };
        if goes {
            draft.actions.push(delete(pod, DeleteReason::JobEnded));
        }
    }
    group::remove(draft);
    ttl::expire(draft);
    Some(if failed {
        PlanReason::Failed
    } else {
        PlanReason::Succeeded
    })
}

/// Success, once the members have ended, and the first of them by completing.
pub(crate) fn success(draft: &mut Draft<'_>) -> Option<PlanReason> {
    let ours = |pod: &&Pod| pod.ours && has_succeeded(pod);
    let completed = draft.observed.pods.iter().filter(ours);
    let ends = completed.map(|pod| {
        pod.container
            .termination
            .as_ref()
            .and_then(|end| end.finished_at)
    });
    let first = ends.min()?;
    let is_ending = match draft.job.program {
        Program::Trainer(_) => trainer_is_ending(draft, first),
        Program::Script(_) if !draft.members.are_whole() => return None,
        // One that never ends is ended by a suspension or by the job's deadline.
        Program::Script(_) if has_running_member(draft) && draft.job.suspend => return None,
        Program::Script(_) if has_running_member(draft) => {
            return deadlines::too_late(draft).or(Some(PlanReason::Finishing));
        }
        Program::Script(_) => false,
    };
    if is_ending {
        return Some(PlanReason::Finishing);
    }
    progress::show_last(draft);
    let steps = draft
        .status
        .progress
        .as_ref()
        .map_or(0, |shown| shown.progress.step);
    let workers = draft.status.membership.as_ref().map_or(0, |m| m.nodes);
    let message = match steps {
        0 => format!("{} completed", counted(workers, "worker")),
        steps => format!(
            "{} completed {}",
            counted(workers, "worker"),
            counted(steps, "step")
        ),
    };
    draft.running(false, ConditionReason::Completed, message.clone());
    let kind = ConditionType::Succeeded;
    draft.complete(kind, ConditionReason::Completed, message.clone());
    draft.events.push(event(EventReason::Succeeded, message));
    Some(PlanReason::Succeeded)
}

/// A member of the built-in trainer completes only when all have committed the last step and the results
/// are written, so a worker that dies after that takes nothing away. The others are given time to end by themselves.
/// (A process of a script ends when it likes: there, all members must complete.)
fn trainer_is_ending(draft: &mut Draft<'_>, first: Option<Timestamp>) -> bool {
    let left = first.and_then(|first| time_left(first, ENDING, draft.now));
    let Some(left) = left.filter(|_| has_running_member(draft)) else {
        return false;
    };
    draft.requeue(left);
    true
}

fn has_running_member(draft: &Draft<'_>) -> bool {
    let members = &draft.members;
    let ending = |pod: &&Pod| members.is_member(pod) && is_alive(pod);
    members.workers.values().any(ending)
}
