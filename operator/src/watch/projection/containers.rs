//! The containers of a pod: what they wait for, and how the trainer ended.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, PodStatus};
use roundhouse_contract::{Reason, TerminationMessage};
use roundhouse_planner::kubelet::{Initializing, is_obstacle};
use roundhouse_planner::{Container, InitContainer, Termination, Waiting};

pub(super) fn containers(status: Option<&PodStatus>) -> impl Iterator<Item = &ContainerStatus> {
    status.into_iter().flat_map(|status| {
        let first = status.init_container_statuses.iter().flatten();
        first.chain(status.container_statuses.iter().flatten())
    })
}

/// The trainer's container. If it waits, its reason may be that of the container that blocks it.
pub(super) fn held_up(mut own: Container, status: Option<&PodStatus>) -> Container {
    let explains = |waiting: &Waiting| is_obstacle(&waiting.reason);
    if own.waiting.as_ref().is_some_and(explains) {
        return own;
    }
    let other = containers(status).filter_map(waiting).find(explains);
    own.waiting = other.or(own.waiting);
    own
}

/// The init container that the trainer waits for.
pub(super) fn initializing(status: &PodStatus) -> Option<Box<InitContainer>> {
    let Initializing {
        container: init,
        failure,
    } = Initializing::of(status)?;
    let Container {
        restarts,
        termination,
        ..
    } = container(init);
    Some(Box::new(InitContainer {
        name: init.name.clone(),
        restarts,
        failure: termination.filter(|_| failure.is_some()),
    }))
}

pub(super) fn container(status: &ContainerStatus) -> Container {
    let restarts = u32::try_from(status.restart_count).unwrap_or(0);
    let now = status
        .state
        .as_ref()
        .and_then(|state| termination(state, restarts));
    // Once the next run has begun, the last state is that of the run before. While the kubelet
    // waits with the next start, the last state is that of the run that the count includes. A
    // container that is created and not started also waits, without a reason.
    let awaits_start = waiting(status).is_some_and(|waiting| !waiting.reason.is_empty());
    let last = restarts.saturating_sub(u32::from(!awaits_start));
    let before = status
        .last_state
        .as_ref()
        .and_then(|state| termination(state, last));
    Container {
        restarts,
        waiting: waiting(status),
        started_at: started_at(status),
        termination: now.or(before),
    }
}

fn started_at(status: &ContainerStatus) -> Option<Timestamp> {
    let running = status.state.as_ref()?.running.as_ref()?;
    running.started_at.as_ref().map(|time| time.0)
}

/// The reason for which a container waits, if it waits.
fn waiting(status: &ContainerStatus) -> Option<Waiting> {
    let waiting = status.state.as_ref()?.waiting.as_ref()?;
    Some(text(waiting.reason.as_ref(), waiting.message.as_ref()))
}

pub(super) fn text(reason: Option<&String>, message: Option<&String>) -> Waiting {
    Waiting {
        reason: reason.cloned().unwrap_or_default(),
        message: message.cloned().unwrap_or_default(),
    }
}

/// The message of a container, or the runtime's message about one that never ran.
fn words(text: &str) -> Option<TerminationMessage> {
    TerminationMessage::parse(text).or_else(|| {
        let message = text.trim();
        (!message.is_empty()).then(|| TerminationMessage {
            reason: Reason::Crashed,
            rank: None,
            generation: 0,
            step: 0,
            message: message.to_owned(),
            progress: None,
        })
    })
}

fn termination(state: &ContainerState, restarts: u32) -> Option<Termination> {
    let ended = state.terminated.as_ref()?;
    Some(Termination {
        restarts,
        exit_code: ended.exit_code,
        reason: ended.reason.clone().unwrap_or_default(),
        message: ended.message.as_deref().and_then(words).map(Box::new),
        finished_at: ended
            .finished_at
            .as_ref()
            .map(|time| -> Timestamp { time.0 }),
    })
}
