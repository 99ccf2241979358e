//! Why a job does not train yet, in the words of the component that holds it up, such as the
//! scheduler.

use std::time::Duration;

use jiff::Timestamp;
use roundhouse_api::{ConditionReason, ConditionType};

use crate::draft::Draft;
use crate::failures::nodes;
use crate::failures::words::{POST_START_HOOK_ERROR, describe_init, sentence};
use crate::observed::{Pod, PodPhase, Waiting};
use crate::plan::PlanReason;
use crate::program::Program;
use crate::status::{bounded, counted, gist, time_left};
use crate::worker_state::is_preparing;
use crate::workers::kueue;

/// Reasons of a waiting container that a user should know about, and what the job's reason is then.
const CONTAINER_TROUBLE: [(&str, ConditionReason); 9] = [
    ("ErrImagePull", ConditionReason::ImagePullFailed),
    ("ImagePullBackOff", ConditionReason::ImagePullFailed),
    ("ErrImageNeverPull", ConditionReason::ImagePullFailed),
    ("InvalidImageName", ConditionReason::ImagePullFailed),
    (
        "CreateContainerConfigError",
        ConditionReason::ContainerConfigError,
    ),
    (
        "CreateContainerError",
        ConditionReason::ContainerConfigError,
    ),
    ("RunContainerError", ConditionReason::ContainerConfigError),
    ("CrashLoopBackOff", ConditionReason::CrashLoopBackOff),
    (POST_START_HOOK_ERROR, ConditionReason::CrashLoopBackOff),
];

/// Longer than a pod takes to start its containers if its images and volumes are available.
const STUCK: Duration = Duration::from_secs(30);

/// Sets the Running condition to what the job waits for.
pub(crate) fn explain(draft: &mut Draft<'_>, able: usize) -> PlanReason {
    let mut hold_up = hold_up(draft);
    if hold_up.reason == ConditionReason::Unschedulable {
        hold_up.words = hold_up.words.map(|words| steady(draft, words));
        draft.status.unschedulable.clone_from(&hold_up.words);
    }
    let message = hold_up.message();
    let mut reason = hold_up.reason;
    let below = (able as u64) < u64::from(draft.job.min_replicas);
    if reason == ConditionReason::Recovering && below && draft.job.min_replicas < draft.job.replicas
    {
        reason = ConditionReason::BelowMinReplicas;
    }
    draft.running(false, reason, message);
    if draft.is_starting() {
        if let Some(left) = start_left(draft).filter(|_| !draft.is_queued()) {
            draft.requeue(left);
        }
        // No event fires when a pod stays stuck, so requeue.
        if draft.members.workers.values().any(|pod| is_starting(pod)) {
            draft.requeue(STUCK);
        }
        if draft.members.workers.len() < draft.job.replicas as usize {
            return PlanReason::CreatingWorkers;
        }
        return PlanReason::WaitingForWorkers;
    }
    PlanReason::Recovering
}

/// The scheduler's previous message if only its numbers differ. They change with every node and pod
/// of the cluster, and each change would cost a write for each waiting job.
fn steady(draft: &Draft<'_>, words: String) -> String {
    let before = draft.observed.status.unschedulable.as_ref();
    let before = before.filter(|before| gist(before) == gist(&words));
    bounded(before.cloned().unwrap_or(words))
}

/// The reason and a sentence why a worker cannot start, if one cannot.
pub(crate) fn first_trouble(draft: &Draft<'_>) -> Option<(ConditionReason, String)> {
    let workers = || draft.members.workers.values();
    // The queue comes first, because it also blocks the other workers.
    let mut queued = workers().filter(|pod| !pod.gates.is_empty() && draft.is_starting());
    let queued = queued.find_map(|pod| trouble(pod));
    queued.or_else(|| workers().find_map(|pod| trouble(pod)))
}

/// What holds the job up: the reason of a condition, and the parts of its message.
pub(crate) struct HoldUp {
    pub(crate) reason: ConditionReason,
    /// How many workers are ready: `2 of 3 workers ready`.
    count: String,
    /// What the first worker waits for, if that is known.
    words: Option<String>,
}

impl HoldUp {
    pub(crate) fn message(&self) -> String {
        match &self.words {
            Some(words) => format!("{}; {words}", self.count),
            None => self.count.clone(),
        }
    }
}

pub(crate) fn hold_up(draft: &Draft<'_>) -> HoldUp {
    // Survivors become Ready only in their next generation, but they count.
    let ready = if draft.is_starting() {
        // Spares do not count as wanted workers.
        let wanted = draft.job.replicas as usize;
        draft.members.num_ready().min(wanted)
    } else {
        draft.members.able().len()
    };
    let count = format!("{ready} of {} ready", counted(draft.job.replicas, "worker"));
    let stuck = || {
        let mut workers = draft.members.workers.values();
        workers.find_map(|pod| stuck(pod, draft.now))
    };
    let initializing = || {
        let mut workers = draft.members.workers.values();
        workers.find_map(|pod| initializing(pod).filter(|_| draft.is_starting()))
    };
    let not_joined = || {
        let joins = matches!(draft.job.program, Program::Joining { .. });
        let mut workers = draft.members.workers.values();
        workers.find_map(|pod| not_joined(pod).filter(|_| joins && draft.is_starting()))
    };
    match first_trouble(draft)
        .or_else(stuck)
        .or_else(initializing)
        .or_else(not_joined)
    {
        Some((reason, words)) => {
            let avoided = nodes::avoided(draft).join(", ");
            let but = if avoided.is_empty() {
                String::new()
            } else {
                format!("; status.avoidNodes keeps new pods from {avoided}")
            };
            HoldUp {
                reason,
                count,
                words: Some(format!("{words}{but}")),
            }
        }
        None if !draft.is_starting() => {
            let next = draft.members.newest_seen + 1;
            let count = format!("{count} for generation {next}");
            HoldUp {
                reason: ConditionReason::Recovering,
                count,
                words: kueue::full(draft),
            }
        }
        None => HoldUp {
            reason: ConditionReason::WaitingForWorkers,
            count,
            words: None,
        },
    }
}

/// Whether the pod is placed and none of its containers has started yet.
fn is_starting(pod: &Pod) -> bool {
    pod.phase == PodPhase::Pending && pod.node.is_some() && pod.initializing.is_none()
}

/// A scheduled pod whose containers do not start, most often because a volume is missing, which
/// only the events of the pod show.
fn stuck(pod: &Pod, now: Timestamp) -> Option<(ConditionReason, String)> {
    let name = &pod.name;
    // The pod may have waited long for a node, so the time counts from its placement.
    let placed_at = pod.scheduled_at.or(pod.created_at)?;
    let is_late = time_left(placed_at, STUCK, now).is_none();
    (is_starting(pod) && is_late).then(|| {
        let words = format!(
            "{name} does not start its containers: is a volume, or the ConfigMap, claim or \
             directory of trainer.data or checkpoint, missing? See `kubectl describe pod {name}`"
        );
        (ConditionReason::ContainerCreating, words)
    })
}

/// A pod whose init container runs.
fn initializing(pod: &Pod) -> Option<(ConditionReason, String)> {
    let init = pod.initializing.as_ref()?;
    let words = format!("{}: its init container {} runs", pod.name, init.name);
    (pod.phase == PodPhase::Pending).then_some((ConditionReason::WaitingForWorkers, words))
}

/// A script that runs and has not joined the lobby.
fn not_joined(pod: &Pod) -> Option<(ConditionReason, String)> {
    let runs = pod.phase == PodPhase::Running && pod.container.waiting.is_none() && !pod.deleting;
    let is_in_lobby = pod.ready || pod.membership.is_some();
    (runs && !is_in_lobby).then(|| {
        let words = format!(
            "{} is starting: its script has not called roundhouse.join() yet, or has not begun its loop",
            pod.name
        );
        (ConditionReason::WaitingForWorkers, words)
    })
}

fn trouble(pod: &Pod) -> Option<(ConditionReason, String)> {
    let name = &pod.name;
    if pod.unreachable {
        // Workers of a local run have no node: the agent itself does not answer.
        let who = pod.node.as_ref().filter(|_| !pod.agent_silent);
        let who = who.map_or_else(|| "its agent".to_owned(), |node| format!("its node {node}"));
        let words = format!("{name}: {who} does not answer");
        return Some((ConditionReason::NodeUnreachable, words));
    }
    // The processes of a new worker prepare, too.
    let has_restarted = pod.processes.as_ref().is_some_and(|it| it.end.is_some());
    if has_restarted && is_preparing(pod) {
        let words = format!("{name}: restarting a failed process; not ready yet");
        return Some((ConditionReason::Recovering, words));
    }
    if pod.phase == PodPhase::Failed {
        let Waiting { reason, message } = pod.failed.clone().unwrap_or_default();
        return Some((
            ConditionReason::WorkerFailed,
            format!("{name}: {reason}: {message}"),
        ));
    }
    if pod.phase == PodPhase::Pending && !pod.gates.is_empty() {
        let gates = pod.gates.join(", ");
        let words = format!("{name} waits until these scheduling gates are removed: {gates}");
        return Some((ConditionReason::SchedulingGated, words));
    }
    if pod.phase == PodPhase::Pending
        && let Some(words) = &pod.unschedulable
    {
        return Some((
            ConditionReason::Unschedulable,
            format!("{}: {words}", pod.name),
        ));
    }
    if let Some(init) = &pod.initializing
        && let Some(end) = &init.failure
    {
        let at = end.finished_at.unwrap_or_default();
        let words = sentence(&describe_init(pod, init, at));
        let restarts = match init.restarts {
            0 => String::new(),
            restarts => format!("; restarted {}", counted(restarts, "time")),
        };
        return Some((
            ConditionReason::InitContainerFailed,
            format!("{words}{restarts}"),
        ));
    }
    let Waiting { reason, message } = pod.container.waiting.as_ref()?;
    let (_, ours) = CONTAINER_TROUBLE
        .iter()
        .find(|(theirs, _)| theirs == reason)?;
    let last = pod
        .container
        .termination
        .as_ref()
        .and_then(|end| end.message.as_ref())
        .filter(|_| reason != POST_START_HOOK_ERROR);
    let words = last.map_or(message, |last| &last.message);
    Some((*ours, format!("{}: {reason}: {words}", pod.name)))
}

/// Whether a worker waited for a scheduling gate when the status was written.
pub(crate) fn was_queued(draft: &Draft<'_>) -> bool {
    let status = &draft.observed.status;
    // An older operator did not store whether the job is queued, only the reason.
    let gated = ConditionReason::SchedulingGated.as_str();
    let running = status.condition(ConditionType::Running);
    status.queued || running.is_some_and(|running| running.reason == gated)
}

/// Time until the start deadline; `None` if it has passed, or if there is none. Time in which no
/// operator could make pods does not count.
pub(crate) fn start_left(draft: &Draft<'_>) -> Option<Duration> {
    let start = draft.status.start_time.as_ref()?.0;
    let begun = draft.observed.watched_since.unwrap_or(start).max(start);
    time_left(begun, draft.job.start_deadline?, draft.now)
}
