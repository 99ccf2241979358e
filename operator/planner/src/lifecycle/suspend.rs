//! Suspension and resumption. A suspended job has no pods and its deadlines do not run. Its Service
//! and NetworkPolicy stay: they cost nothing, and hold the job's name.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use roundhouse_api::{ConditionReason, ConditionType, EventReason};
use roundhouse_contract::Mode;

use crate::draft::{Draft, event};
use crate::failures::replacements;
use crate::observed::Pod;
use crate::plan::{DeleteReason, PlanReason};
use crate::status::progress;
use crate::status::{counted, set_condition};
use crate::worker_state::may_hold_resources;
use crate::workers::delete::delete;
use crate::workers::group;

/// Suspends a job with `spec.suspend`: deletes all its pods. How these pods end is not a failure.
pub(crate) fn pause(draft: &mut Draft<'_>) -> Option<PlanReason> {
    if !draft.job.suspend {
        return None;
    }
    let pods: Vec<&Pod> = draft.pods.iter().filter(|pod| pod.ours).collect();
    for pod in pods.iter().filter(|pod| !pod.deleting) {
        draft.actions.push(delete(pod, DeleteReason::Suspended));
    }
    group::remove(draft);
    draft.status.active_seconds = active(draft).as_secs();
    draft.status.start_time = None;
    progress::show_last(draft);
    let asked = pods.iter().filter(|pod| !pod.deleting).count();
    let leaving = asked + await_leavers(draft);
    let message = sentence(draft, leaving);
    let is_news = is_news(draft, leaving, &message);
    draft.running(false, ConditionReason::Suspended, message.clone());
    suspended(draft, true, ConditionReason::Suspended, message.clone());
    if is_news {
        draft.events.push(event(EventReason::Suspended, message));
    }
    Some(PlanReason::Suspended)
}

/// Whether to publish an event: when the suspension starts, and once more when all workers have
/// left. Only then is the last checkpoint known.
fn is_news(draft: &Draft<'_>, leaving: usize, message: &str) -> bool {
    let suspended = draft.status.condition(ConditionType::Suspended);
    let before = suspended.filter(|condition| condition.status == "True");
    before.is_none_or(|before| leaving == 0 && before.message != message)
}

/// Resumes a suspended job. A worker that has not left may still write the checkpoint from which
/// the job continues, so the job waits until the worker's grace period is over.
pub(crate) fn resume(draft: &mut Draft<'_>) -> Option<PlanReason> {
    if !draft.status.is_true(ConditionType::Suspended) {
        return None;
    }
    let leaving = await_leavers(draft);
    if leaving > 0 {
        let message = match leaving {
            1 => "waiting for 1 terminating worker".to_owned(),
            number => format!("waiting for {number} terminating workers"),
        };
        draft.running(false, ConditionReason::Resuming, message.clone());
        suspended(draft, true, ConditionReason::Resuming, message);
        return Some(PlanReason::Resuming);
    }
    draft.status.resumed_after_generation = Some(draft.members.generation);
    draft.status.incidents.since_progress = 0;
    if let Some(membership) = &mut draft.status.membership {
        // All members are needed again.
        membership.completed.clear();
    }
    let is_new = starts_over(draft);
    replacements::begin_run(draft, is_new);
    if is_new {
        draft.status.incidents.last_step = 0;
        draft.status.progress = None;
    }
    let message = resumption(draft);
    suspended(draft, false, ConditionReason::Resumed, message.clone());
    draft.events.push(event(EventReason::Resumed, message));
    None
}

fn resumption(draft: &Draft<'_>) -> String {
    match known_step(draft) {
        _ if starts_over(draft) => "the job is resumed and begins again at step 0".to_owned(),
        Some(step) => format!("the job is resumed; the newest known checkpoint holds {step} steps"),
        None => "the job is resumed".to_owned(),
    }
}

/// Committed steps that the newest checkpoint holds, if it was reported.
fn known_step(draft: &Draft<'_>) -> Option<u64> {
    let checkpoint = draft.status.checkpoint.as_ref();
    checkpoint.and_then(|checkpoint| checkpoint.step)
}

/// Whether nothing is left of the built-in trainer's state. A script may keep its own checkpoints.
fn starts_over(draft: &Draft<'_>) -> bool {
    draft.job.checkpoint.is_none() && draft.job.program.mode() == Mode::InProcess
}

/// Time that the job has been active: before the last suspension and since the resumption.
pub(crate) fn active(draft: &Draft<'_>) -> Duration {
    let before = Duration::from_secs(draft.status.active_seconds);
    let Some(start) = draft
        .status
        .start_time
        .as_ref()
        .filter(|_| !draft.is_queued())
    else {
        return before;
    };
    let since = draft.now.duration_since(start.0).max(SignedDuration::ZERO);
    before + since.unsigned_abs()
}

/// Number of terminating pods that may still run. No event reports the end of a grace period, so
/// the job is requeued.
fn await_leavers(draft: &mut Draft<'_>) -> usize {
    let pods = draft.pods.iter();
    let left = pods.filter_map(|pod| still_leaves(pod, draft.now));
    let left: Vec<Duration> = left.collect();
    if let Some(longest) = left.iter().max() {
        draft.requeue(*longest);
    }
    left.len()
}

/// How long a terminating pod may still run. `None` if it has ended, or its node does not answer.
pub(crate) fn still_leaves(pod: &Pod, now: Timestamp) -> Option<Duration> {
    let left = pod.gone_by?.duration_since(now);
    let leaves = pod.deleting && may_hold_resources(pod) && left.is_positive();
    leaves.then(|| left.unsigned_abs())
}

pub(crate) fn suspended(
    draft: &mut Draft<'_>,
    is_true: bool,
    reason: ConditionReason,
    message: String,
) {
    let kind = ConditionType::Suspended;
    set_condition(&mut draft.status, kind, is_true, reason, message, draft.now);
}

fn sentence(draft: &Draft<'_>, leaving: usize) -> String {
    let state = match (&draft.job.checkpoint, known_step(draft)) {
        (None, _) if !starts_over(draft) => {
            "the script has to load its own checkpoint when it is resumed".to_owned()
        }
        (None, _) => {
            "training begins again at step 0 when resumed: there is no spec.checkpoint".to_owned()
        }
        (Some(_), None) => "no checkpoint is known yet".to_owned(),
        (Some(_), Some(step)) => format!("the newest known checkpoint holds {step} steps"),
    };
    let saves = draft.job.checkpoint.is_some() && draft.job.program.mode() == Mode::InProcess;
    let leaves = match (leaving, saves) {
        (0, false) => return format!("no workers; {state}"),
        (0, true) => return format!("no workers; {state}{}", unsaved(draft)),
        (1, false) => "leaves",
        (1, true) => "leaves and saves first",
        (_, false) => "leave",
        (_, true) => "leave and save first",
    };
    let unit = if draft.own_job.has_large_replicas() {
        "pod"
    } else {
        "worker"
    };
    format!("{} still {leaves}; {state}", counted(leaving, unit))
}

/// Describes steps that were committed after the newest known checkpoint. A pod that is removed
/// before its termination message is read may have saved them.
fn unsaved(draft: &Draft<'_>) -> String {
    let known = known_step(draft).unwrap_or_default();
    let progress = draft.status.progress.as_ref();
    let step = progress.map_or(0, |shown| shown.progress.step);
    if step <= known {
        return String::new();
    }
    format!(
        "; steps {} to {step} are not known to be saved, and are done again if they are not",
        known + 1
    )
}
