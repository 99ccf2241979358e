//! Incidents of a job, from the operator's events and the status. Pure.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use roundhouse_api::{EventReason, LastFailure};
use serde_json::{Value, json};

use crate::facts::Facts;
use crate::view::{exit, since, time_of};

/// All known incidents, oldest first. Kubernetes keeps events for an hour; the status keeps the
/// newest incident.
pub(super) fn of(facts: &Facts) -> Vec<LastFailure> {
    let events = facts
        .events
        .iter()
        .filter(|event| event.reason.as_deref() == Some(EventReason::WorkerFailed.as_str()));
    let reported = events.filter_map(|event| parse(event.message.as_deref()?, time_of(event)?));
    let mut all: Vec<LastFailure> = reported.collect();
    if let Some(last) = facts.status().last_failure {
        // The status has the time of the failure, the event only the time of its publication.
        match all.iter_mut().rfind(|it| is_same(it, &last)) {
            Some(same) => *same = last,
            None => all.push(last),
        }
    }
    all.sort_by_key(|incident| incident.time.0);
    all
}

/// Whether both describe one failure. An event may differ from the status in time, node and
/// message.
fn is_same(one: &LastFailure, other: &LastFailure) -> bool {
    one.worker == other.worker
        && one.rank == other.rank
        && one.reason == other.reason
        && one.exit_code == other.exit_code
        && step(one) == step(other)
}

/// The step, except 0: events do not mention a step before training.
fn step(incident: &LastFailure) -> Option<u64> {
    incident.step.filter(|step| *step > 0)
}

pub(super) fn document(incident: &LastFailure, now: Timestamp) -> Value {
    let LastFailure {
        time: Time(at),
        worker,
        rank,
        node,
        reason,
        exit_code,
        step: _,
        message,
    } = incident;
    let exit = exit_code.map(|code| exit::words(code, reason));
    json!({
        "at": at.as_millisecond(), "age": since(Some(*at), now), "pod": worker, "rank": rank, "node": node,
        "reason": reason, "exitCode": exit_code, "exit": exit, "step": step(incident), "message": message,
    })
}

/// Parses the planner's sentence:
/// `POD[ rank R][ on NODE]: REASON[ (exit code C)][ after step S][: MESSAGE]`.
fn parse(text: &str, at: Timestamp) -> Option<LastFailure> {
    let (who, what) = text.split_once(": ")?;
    let (what, message) = what.split_once(": ").unwrap_or((what, ""));
    let (who, node) = match who.split_once(" on ") {
        Some((who, node)) => (who, Some(node.to_owned())),
        None => (who, None),
    };
    let (pod, rank) = match who.split_once(" rank ") {
        Some((pod, rank)) => (pod, rank.parse().ok()),
        None => (who, None),
    };
    let (what, step) = match what.split_once(" after step ") {
        Some((what, step)) => (what, step.parse().ok()),
        None => (what, None),
    };
    let (reason, exit_code) = match what.split_once(" (exit code ") {
        Some((reason, code)) => (reason, code.trim_end_matches(')').parse().ok()),
        None => (what, None),
    };
    Some(LastFailure {
        time: Time(at),
        worker: pod.to_owned(),
        rank,
        node,
        reason: reason.to_owned(),
        exit_code,
        step,
        message: message.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{before, job};

    fn event(text: &str, seconds: i64) -> Value {
        json!({
            "metadata": {}, "involvedObject": {"kind": "TrainingJob", "name": "digits"}, "type": "Warning",
            "reason": "WorkerFailed", "message": text, "lastTimestamp": before(seconds),
        })
    }

    #[test]
    fn event_message_is_parsed_completely() {
        let at = Timestamp::UNIX_EPOCH;
        let full = "digits-worker-1-0 rank 1 on node-1: Killed (exit code 137) after step 103: killed by SIGKILL: or not";
        let found = parse(full, at).unwrap();
        assert_eq!(
            (found.worker.as_str(), found.rank, found.node.as_deref()),
            ("digits-worker-1-0", Some(1), Some("node-1"))
        );
        assert_eq!(
            (found.reason.as_str(), found.exit_code, found.step),
            ("Killed", Some(137), Some(103))
        );
        assert_eq!(found.message, "killed by SIGKILL: or not");
        let short = parse("digits-worker-0-2: Evicted", at).unwrap();
        assert_eq!(
            (short.worker.as_str(), short.reason.as_str()),
            ("digits-worker-0-2", "Evicted")
        );
        assert_eq!(
            (short.rank, short.exit_code, short.step),
            (None, None, None)
        );
    }

    #[test]
    fn incident_in_status_and_event_is_shown_once() {
        let mut case = job().trains(2).last_failure("Killed", 137, "out of memory");
        let words = "digits-worker-1-0 rank 1 on node-1: Killed (exit code 137) after step 480: out of memory";
        case.events = vec![
            event("digits-worker-0-0: Evicted", 200),
            event(words, 150),
            event(words, 80),
        ];
        let found = of(&case.facts());
        let times: Vec<String> = found.iter().map(|it| it.time.0.to_string()).collect();
        // The newer of the two equal events is the failure in the status, with the status's time.
        assert_eq!(times, [before(200), before(150), before(90)]);
        assert_eq!(found[2].message, "out of memory");
    }

    #[test]
    fn incident_without_event_comes_from_the_status() {
        let case = job().trains(2).last_failure("Killed", 137, "");
        assert_eq!(of(&case.facts()).len(), 1);
    }
}
