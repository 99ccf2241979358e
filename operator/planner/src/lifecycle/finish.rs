//! The end of a job, and the removal of its pods.

use std::time::Duration;

use jiff::Timestamp;
use roundhouse_api::{
    CleanPodPolicy, ConditionReason, ConditionType, EventReason, SuccessPolicy, TrainingJobStatus,
};
use roundhouse_contract::{Mode, Progress};

use crate::draft::{Draft, event};
use crate::lifecycle::{deadlines, ttl};
use crate::observed::{Pod, PodPhase};
use crate::plan::{DeleteReason, PlanReason};
use crate::program::Program;
use crate::status::progress;
use crate::status::{counted, time_left};
use crate::worker_state::{has_succeeded, is_alive};
use crate::workers::delete::delete;
use crate::workers::{group, kueue};

/// How long members may take to end after the first one has completed.
const ENDING: Duration = Duration::from_secs(30);

/// Cleans up after an ended job in each reconcile until nothing is left. Does
/// nothing for other jobs.
pub(crate) fn after_the_end(draft: &mut Draft<'_>) -> Option<PlanReason> {
    if !draft.status.is_terminal() {
        return None;
    }
    // The status of an ended job does not change. Only `observedGeneration` follows a later edit:
    // otherwise tools would wait for it indefinitely.
    draft.status = TrainingJobStatus {
        observed_generation: Some(draft.job.generation),
        ..draft.observed.status.clone()
    };
    let failed = draft.status.is_true(ConditionType::Failed);
    kueue::end_group(draft);
    let pods: Vec<&Pod> = draft
        .pods
        .iter()
        .filter(|pod| should_delete(pod, draft.job.clean_pod_policy, failed))
        .collect();
    // After a restore of etcd the job may train again while a cache still shows its end. Then only
    // pods must stay: a PodGroup is made again, and the TTL has a check of its own.
    if !pods.is_empty() && deadlines::is_fresh(draft) {
        let deletions = pods
            .into_iter()
            .map(|pod| delete(pod, DeleteReason::JobEnded));
        draft.actions.extend(deletions);
    }
    group::remove(draft);
    ttl::expire(draft);
    Some(if failed {
        PlanReason::Failed
    } else {
        PlanReason::Succeeded
    })
}

/// Whether a pod of an ended job is deleted.
fn should_delete(pod: &Pod, policy: CleanPodPolicy, failed: bool) -> bool {
    // A pod whose container has completed will soon be Succeeded: it stays with its log.
    let completed = pod
        .container
        .termination
        .as_ref()
        .is_some_and(|end| end.exit_code == 0 && end.restarts == pod.container.restarts);
    let active = matches!(pod.phase, PodPhase::Pending | PodPhase::Running);
    let runs = active && (!completed || pod.sidecar_runs);
    let wanted = match policy {
        CleanPodPolicy::All => true,
        CleanPodPolicy::Running => runs,
        // The kubelet would restart a container of a failed job indefinitely, and a worker that
        // waits for a node or for peers would wait indefinitely. Both would keep a GPU.
        CleanPodPolicy::None => runs && (failed || !completed),
    };
    pod.ours && !pod.deleting && wanted
}

/// Succeeds the job once a member has completed and the others have ended; or, with the success
/// policy `RankZero`, once rank 0 has completed.
pub(crate) fn success(draft: &mut Draft<'_>) -> Option<PlanReason> {
    let members = newest_members(draft).into_iter();
    let ends = members.filter(|pod| has_succeeded(pod)).map(|pod| {
        pod.container
            .termination
            .as_ref()
            .and_then(|end| end.finished_at)
            // The time is from the node's clock, which may be ahead.
            .map(|at| at.min(draft.now))
    });
    let first = ends.min();
    // Completions in the status count even if the pods are gone.
    if first.is_none() && draft.members.completed.is_empty() {
        return None;
    }
    let first = first.flatten();
    if draft.job.success_policy == SuccessPolicy::RankZero && rank_zero_has_completed(draft) {
        return Some(succeed(draft, "rank 0"));
    }
    let is_ending = match draft.job.program {
        Program::Trainer(_) => trainer_is_ending(draft, first),
        Program::Joining { .. } | Program::Script(_) => {
            if !draft.members.are_whole() {
                return None;
            }
            // A suspension or the job's deadline ends a member that never ends by itself.
            match has_running_member(draft) {
                true if draft.job.suspend => return None,
                true => return deadlines::too_late(draft).or_else(|| Some(finishing(draft))),
                false => false,
            }
        }
    };
    if is_ending {
        return Some(finishing(draft));
    }
    let workers = draft.status.membership.as_ref().map_or(0, |m| m.nodes);
    Some(succeed(draft, &counted(workers, "worker")))
}

/// Reports that some members have completed and the others are about to.
fn finishing(draft: &mut Draft<'_>) -> PlanReason {
    let done = draft.members.all_completed().len();
    let nodes = draft.status.membership.as_ref().map_or(0, |m| m.nodes);
    let workers = counted(nodes, "worker");
    let message = format!("{done} of {workers} completed");
    draft.running(true, ConditionReason::Finishing, message);
    PlanReason::Finishing
}

/// Whether the worker of rank 0 has completed.
fn rank_zero_has_completed(draft: &Draft<'_>) -> bool {
    if draft.members.completed.contains(&0) {
        return true;
    }
    let rank = |pod: &Pod| pod.membership.as_ref().map(|place| place.node_rank);
    let mut members = newest_members(draft).into_iter();
    members.any(|pod| rank(pod) == Some(0) && has_succeeded(pod))
}

/// Pods of the newest generation of this run of which any pod has a membership. A completed pod of
/// an older generation, held by a finalizer, says nothing about the members that train now.
fn newest_members<'a>(draft: &Draft<'a>) -> Vec<&'a Pod> {
    let of_runs_before = draft.status.resumed_after_generation.unwrap_or(0);
    let generation = |pod: &Pod| pod.membership.as_ref().map(|place| place.generation);
    let ours = draft.observed.pods.iter().filter(|pod| pod.ours);
    let ours = ours.filter(|pod| generation(pod) > Some(of_runs_before));
    let newest = ours.clone().filter_map(generation).max();
    ours.filter(|pod| generation(pod) == newest).collect()
}

fn succeed(draft: &mut Draft<'_>, who: &str) -> PlanReason {
    progress::show_last(draft);
    let steps = draft
        .status
        .progress
        .as_ref()
        .map_or(0, |shown| shown.progress.step);
    let message = match steps {
        0 => format!("{who} completed"),
        _ if has_made_no_step(draft) => format!(
            "{who} completed {}, all of them in an earlier run under this name: nothing was left to train. Give more \
             steps or another name, or delete the job's directory of checkpoints",
            counted(steps, "step")
        ),
        steps => match last_report(draft) {
            Some(report) => format!("{who} completed; {report}"),
            None => format!("{who} completed {}", counted(steps, "step")),
        },
    };
    draft.running(false, ConditionReason::Completed, message.clone());
    let kind = ConditionType::Succeeded;
    draft.complete(kind, ConditionReason::Completed, message.clone());
    draft.events.push(event(EventReason::Succeeded, message));
    PlanReason::Succeeded
}

/// The last report of a script in restart mode, unless it is that of the last step. Such a script
/// may do more steps after it, or end before.
fn last_report(draft: &Draft<'_>) -> Option<String> {
    let progress = &draft.status.progress.as_ref()?.progress;
    let (step, total) = (progress.step, progress.total_steps);
    let is_at_end = total > 0 && step >= total;
    let says_steps = draft.job.program.mode() != Mode::Restart || is_at_end;
    let of = (total > 0).then(|| format!(" of {total}"));
    (!says_steps).then(|| {
        let of = of.unwrap_or_default();
        format!("the last step that the script reported was {step}{of}")
    })
}

/// Whether an earlier job of this name had done all steps, so that this job continued from that
/// job's last checkpoint and did none. A process that commits a step reports a loss, so there was
/// no step. In later generations a process that is gone may have committed a step.
fn has_made_no_step(draft: &Draft<'_>) -> bool {
    let generation = draft.status.membership.as_ref().map(|m| m.generation);
    let progress = draft.status.progress.as_ref().map(|shown| &shown.progress);
    let is_silent = |progress: &Progress| {
        let is_done = progress.total_steps > 0 && progress.step >= progress.total_steps;
        is_done && progress.loss.is_none() && progress.samples_per_second <= 0.0
    };
    // A script that reports its progress in a file need not write a loss.
    draft.job.program.mode() != Mode::Restart
        && generation == Some(1)
        && progress.is_some_and(is_silent)
}

/// Whether members of the built-in trainer are about to end. A member completes only when
/// all have committed the last step and the results are written, so a worker that dies after
/// that loses nothing. The others get time to end by themselves. (A process of a script ends
/// when it likes, even if it has joined, and its work after the last step is its own. There,
/// all members must complete.)
fn trainer_is_ending(draft: &mut Draft<'_>, first: Option<Timestamp>) -> bool {
    if !has_running_member(draft) {
        return false;
    }
    let left = first.and_then(|first| time_left(first, ENDING, draft.now));
    let Some(left) = left else {
        // The caches may be stale: all members may have ended long ago.
        return !deadlines::is_confirmed(draft);
    };
    draft.requeue(left);
    true
}

fn has_running_member(draft: &Draft<'_>) -> bool {
    let members = &draft.members;
    let ending = |pod: &&Pod| members.is_member(pod) && is_alive(pod);
    members.workers.values().any(ending)
}
