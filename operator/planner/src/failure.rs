//! Incidents, each counted once, and when the job is given up.

use std::fmt::Write;

use roundhouse_api::LastFailure;
use roundhouse_contract::{ExitCode, termination::Reason};

use crate::decide::{Draft, event};
use crate::finish;
use crate::observed::{Pod, Termination};
use crate::plan::{EventType, PlanReason};
use crate::status::time;
use crate::{suspend, waiting};

/// Counts what is to be counted, and gives the job up if it cannot be saved.
pub(crate) fn give_up(draft: &mut Draft<'_>) -> Option<PlanReason> {
    if let Some((reason, message)) = permanent(draft) {
        return Some(finish::fail(draft, reason, message));
    }
    count_incident(draft);
    if let Some(message) = too_many(draft) {
        return Some(finish::fail(draft, "BackoffLimitExceeded", message));
    }
    if let Some(deadline) = draft.job.active_deadline {
        let left = deadline.saturating_sub(suspend::active(draft));
        if left.is_zero() {
            let seconds = deadline.as_secs();
            let message = format!("the job was active for {seconds} s, its activeDeadlineSeconds");
            return Some(finish::fail(draft, "DeadlineExceeded", message));
        }
        draft.requeue(left);
    }
    if draft.is_starting() && waiting::start_deadline_left(draft).is_none() {
        let (_, words) = waiting::hold_up(draft);
        let seconds = draft.job.start_deadline.as_secs();
        let message = format!("not all workers were ready within {seconds} s: {words}");
        return Some(finish::fail(draft, "StartDeadlineExceeded", message));
    }
    None
}

/// An exit code after which running it again ends the same way.
fn permanent(draft: &mut Draft<'_>) -> Option<(&'static str, String)> {
    let found = draft.members.workers.values().find_map(|pod| {
        let end = pod.container.termination.as_ref()?;
        let code = ExitCode::from_code(end.exit_code).filter(|code| code.is_permanent())?;
        Some((*pod, end.clone(), code))
    });
    let (pod, end, code) = found?;
    let failure = describe(draft, pod, &end);
    let message = sentence(&failure);
    draft.status.last_failure = Some(failure);
    Some((Reason::of(code).as_str(), message))
}

/// One incident per generation: a member failed. Its number in the status says that it is counted.
/// Who lost a peer may be seen before the peer: the failure that explains the others takes its place.
fn count_incident(draft: &mut Draft<'_>) {
    let generation = draft.members.generation;
    let counted = draft.status.incidents.last_generation == Some(generation);
    if generation == 0 || (counted && !is_collateral(draft.status.last_failure.as_ref())) {
        return;
    }
    let Some((pod, end)) = first_failure(draft) else {
        return;
    };
    let failure = describe(draft, pod, end);
    if counted {
        if !is_collateral(Some(&failure)) {
            tell(draft, failure);
        }
        return;
    }
    let told = end.message.as_ref().map_or(0, |message| message.step);
    let shown = draft
        .status
        .progress
        .as_ref()
        .map_or(0, |shown| shown.progress.step);
    let step = told.max(shown);
    let incidents = &mut draft.status.incidents;
    incidents.total += 1;
    incidents.since_progress = if step > incidents.last_step {
        1
    } else {
        incidents.since_progress + 1
    };
    incidents.last_step = incidents.last_step.max(step);
    incidents.last_generation = Some(generation);
    tell(draft, failure);
}

fn tell(draft: &mut Draft<'_>, failure: LastFailure) {
    let message = sentence(&failure);
    draft
        .events
        .push(event(EventType::Warning, "WorkerFailed", message));
    draft.status.last_failure = Some(failure);
}

fn is_collateral(failure: Option<&LastFailure>) -> bool {
    failure.is_some_and(|failure| failure.exit_code == Some(ExitCode::PeerLost.code()))
}

/// The failure that explains the others: of the members of the newest generation, the first that did
/// not merely lose a peer.
fn first_failure<'a>(draft: &Draft<'a>) -> Option<(&'a Pod, &'a Termination)> {
    let generation = draft.members.generation;
    let mut failures: Vec<_> = draft
        .observed
        .pods
        .iter()
        .filter(|pod| pod.ours && !pod.deleting && !pod.disrupted)
        .filter_map(|pod| {
            let document = pod.membership.as_ref()?;
            let end = pod.container.termination.as_ref()?;
            let of_member =
                document.generation == generation && end.restarts >= document.incarnation.restarts;
            (of_member && end.exit_code != 0).then_some((pod, end))
        })
        .collect();
    failures.sort_by_key(|(pod, end)| {
        let collateral = end.exit_code == ExitCode::PeerLost.code();
        (collateral, end.finished_at, pod.name.clone())
    });
    failures.into_iter().next()
}

fn too_many(draft: &Draft<'_>) -> Option<String> {
    let limit = draft.job.backoff_limit;
    let incidents = &draft.status.incidents;
    let last = draft.status.last_failure.as_ref().map(sentence);
    if incidents.since_progress > limit {
        let last = last.unwrap_or_default();
        let count = incidents.since_progress;
        return Some(format!(
            "{count} incidents in a row without a new step; the last: {last}"
        ));
    }
    // A container that fails in the lobby belongs to no generation; its restarts are the count.
    let pod = draft.members.workers.values().find(|pod| {
        let trained = pod
            .membership
            .as_ref()
            .map_or(0, |m| m.incarnation.restarts + 1);
        pod.container.restarts.saturating_sub(trained) > limit
    })?;
    let words = pod
        .container
        .termination
        .as_ref()
        .map(|end| sentence(&describe(draft, pod, end)));
    let restarts = pod.container.restarts;
    Some(format!(
        "{} restarted {restarts} times; {}",
        pod.name,
        words.unwrap_or_default()
    ))
}

fn describe(draft: &Draft<'_>, pod: &Pod, end: &Termination) -> LastFailure {
    let words = end.message.as_ref();
    LastFailure {
        time: time(end.finished_at.unwrap_or(draft.now)),
        worker: pod.name.clone(),
        rank: words.and_then(|words| words.rank),
        node: pod.node.clone(),
        // Kubernetes knows what killed it; the agent only sees a signal.
        reason: match words {
            Some(words) if end.reason != "OOMKilled" => words.reason.as_str().to_owned(),
            _ => end.reason.clone(),
        },
        exit_code: Some(end.exit_code),
        step: words.map(|words| words.step),
        message: words.map_or_else(String::new, |words| words.message.clone()),
    }
}

/// The failure in a sentence.
fn sentence(failure: &LastFailure) -> String {
    let LastFailure {
        time: _,
        worker,
        rank,
        node,
        reason,
        exit_code,
        step,
        message,
    } = failure;
    let mut text = worker.clone();
    if let Some(rank) = rank {
        let _ = write!(text, " rank {rank}");
    }
    if let Some(node) = node {
        let _ = write!(text, " on {node}");
    }
    let _ = write!(text, ": {reason}");
    if let Some(code) = exit_code {
        let _ = write!(text, " (exit code {code})");
    }
    if let Some(step) = step.filter(|step| *step > 0) {
        let _ = write!(text, " after step {step}");
    }
    if !message.is_empty() {
        let _ = write!(text, ": {message}");
    }
    text
}
