//! Explains why the kubelet stopped a container. The process receives only SIGTERM and reports that
//! it left on request; the kubelet's events say whether a probe or a hook of the template was the
//! cause.

use k8s_openapi::api::core::v1::Event;
use roundhouse_contract::{ExitCode, Reason};

use super::Diagnosis;
use crate::facts::Facts;

/// Reasons of the kubelet's events about a container that it stops.
const REASONS: [&str; 5] = [
    "FailedPostStartHook",
    "FailedPreStopHook",
    "Unhealthy",
    "Killing",
    "ExceededGracePeriod",
];
/// Most events to show, the newest ones.
const MOST: usize = 3;

/// Adds the kubelet's events to a diagnosis of something wrong, if a worker has left.
pub(super) fn explained(facts: &Facts, diagnosis: Diagnosis) -> Diagnosis {
    if !diagnosis.is_wrong || !has_left(facts) {
        return diagnosis;
    }
    let about = facts.events.iter().rev().filter_map(of_kubelet);
    let events: Vec<String> = about.take(MOST).collect();
    if events.is_empty() {
        return diagnosis;
    }
    let diagnosis = events
        .into_iter()
        .rev()
        .fold(diagnosis, Diagnosis::shown_by);
    diagnosis.advise(
        "The kubelet stopped the container: correct the probe or the lifecycle hook of workers.template that its event names.",
    )
}

fn has_left(facts: &Facts) -> bool {
    let last = facts.status().last_failure;
    let workers = facts.workers();
    last.is_some_and(|last| last.reason == Reason::Left.as_str())
        || workers.iter().filter(|it| !it.is_leaving).any(|worker| {
            let end = worker.end.as_ref();
            end.is_some_and(|end| ExitCode::from_code(end.code) == Some(ExitCode::Left))
        })
}

fn of_kubelet(event: &Event) -> Option<String> {
    let object = &event.involved_object;
    let reason = event.reason.as_deref()?;
    let is_about_a_container = object.kind.as_deref() == Some("Pod") && REASONS.contains(&reason);
    let pod = object.name.as_deref().filter(|_| is_about_a_container)?;
    let message = event.message.as_deref().unwrap_or_default();
    Some(format!("event {reason} of {pod}: {message}"))
}
