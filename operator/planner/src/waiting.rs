//! Why a job does not train yet, in the words of whoever holds it up.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::decide::Draft;
use crate::observed::{Pod, PodPhase, Waiting};
use crate::plan::PlanReason;

/// Reasons of a waiting container that a user should know about, and what the job's reason is then.
const CONTAINER_TROUBLE: [(&str, &str); 8] = [
    ("ErrImagePull", "ImagePullFailed"),
    ("ImagePullBackOff", "ImagePullFailed"),
    ("ErrImageNeverPull", "ImagePullFailed"),
    ("InvalidImageName", "ImagePullFailed"),
    ("CreateContainerConfigError", "ContainerConfigError"),
    ("CreateContainerError", "ContainerConfigError"),
    ("RunContainerError", "ContainerConfigError"),
    ("CrashLoopBackOff", "CrashLoopBackOff"),
];

/// Says in the Running condition what is waited for.
pub(crate) fn explain(draft: &mut Draft<'_>) -> PlanReason {
    let (reason, message) = hold_up(draft);
    draft.running(false, reason, message);
    if draft.members.generation == 0 {
        if let Some(left) = start_deadline_left(draft) {
            draft.requeue(left);
        }
        if draft.members.workers.len() < draft.job.replicas as usize {
            return PlanReason::CreatingWorkers;
        }
        return PlanReason::WaitingForWorkers;
    }
    PlanReason::Recovering
}

/// What holds the job up, as a reason and a sentence.
pub(crate) fn hold_up(draft: &Draft<'_>) -> (&'static str, String) {
    let ready = draft
        .members
        .workers
        .values()
        .filter(|pod| pod.ready)
        .count();
    let count = format!("{ready} of {} workers ready", draft.job.replicas);
    let trouble = draft.members.workers.values().find_map(|pod| trouble(pod));
    match trouble {
        Some((reason, words)) => (reason, format!("{count}; {words}")),
        None if draft.members.generation > 0 => {
            let next = draft.members.generation + 1;
            ("Recovering", format!("{count} for generation {next}"))
        }
        None => ("WaitingForWorkers", count),
    }
}

fn trouble(pod: &Pod) -> Option<(&'static str, String)> {
    if pod.phase == PodPhase::Pending
        && let Some(words) = &pod.unschedulable
    {
        return Some(("Unschedulable", format!("{}: {words}", pod.name)));
    }
    let Waiting { reason, message } = pod.container.waiting.as_ref()?;
    let (_, ours) = CONTAINER_TROUBLE
        .iter()
        .find(|(theirs, _)| theirs == reason)?;
    let last = pod
        .container
        .termination
        .as_ref()
        .and_then(|end| end.message.as_ref());
    let words = last.map_or(message, |last| &last.message);
    Some((ours, format!("{}: {reason}: {words}", pod.name)))
}

/// Time until the start deadline; `None` if it has passed or cannot be told.
pub(crate) fn start_deadline_left(draft: &Draft<'_>) -> Option<Duration> {
    let deadline = start_deadline(draft)?;
    let left: SignedDuration = deadline.duration_since(draft.now);
    Duration::try_from(left).ok().filter(|left| !left.is_zero())
}

fn start_deadline(draft: &Draft<'_>) -> Option<Timestamp> {
    let start = draft.status.start_time.as_ref()?.0;
    start
        .checked_add(SignedDuration::try_from(draft.job.start_deadline).ok()?)
        .ok()
}
