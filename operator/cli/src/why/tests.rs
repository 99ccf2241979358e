use roundhouse_contract::Progress;
use serde_json::{Value, json};

use super::{Situation, diagnose};
use crate::testing::{Case, before, job, progress};

mod starting;
mod training;

/// The expected situation, the job, and words that summary, evidence or advice must contain.
type Row = (Situation, Case, &'static [&'static str]);

fn failed(case: Case, reason: &str, message: &str) -> Case {
    case.condition("Failed", "True", reason, message)
}

fn with_pod(mut case: Case, path: &str, value: Value) -> Case {
    *case.pods.last_mut().unwrap().pointer_mut(path).unwrap() = value;
    case
}

#[test]
fn each_situation_has_evidence_and_advice() {
    for (expected, case, words) in starting::before_training()
        .into_iter()
        .chain(starting::while_containers_are_created())
        .chain(starting::while_starting())
        .chain(training::after_start())
    {
        let found = diagnose(&case.facts());
        assert_eq!(found.situation, expected, "{found:#?}");
        assert_eq!(found.is_wrong, expected.is_wrong());
        let has_advice = !found.advice.is_empty() || expected == Situation::Succeeded;
        assert!(has_advice, "{found:#?}");
        let all = format!(
            "{}\n{}\n{}",
            found.summary,
            found.evidence.join("\n"),
            found.advice.join("\n")
        );
        for word in words {
            assert!(all.contains(word), "{word:?} is not in {found:#?}");
        }
    }
}

#[test]
fn lost_worker_of_a_training_job_is_healthy() {
    let case = job().with("spec/workers/minReplicas", json!(1)).trains(2);
    assert_eq!(diagnose(&case.facts()).situation, Situation::Healthy);
}

#[test]
fn newer_step_of_an_agent_counts_as_progress() {
    let newer = Progress {
        step: 481,
        ..progress()
    };
    let case = job()
        .trains(2)
        .with("status/progress/updatedAt", json!(before(1_200)))
        .reports(0, newer, "");
    assert_eq!(diagnose(&case.facts()).situation, Situation::Healthy);
}

#[test]
fn kubelet_events_explain_a_stopped_container() {
    let event = |reason: &str, message: &str| {
        json!({
            "metadata": {}, "type": "Warning", "reason": reason, "message": message,
            "involvedObject": {"kind": "Pod", "name": "digits-worker-0-0"},
        })
    };
    let hook = event("FailedPostStartHook", "PostStartHook failed");
    let crashing = |code: i32, events: &[&Value]| {
        let mut case = job().crashes(0, code, "Error", "left on request");
        case.events.extend(events.iter().copied().cloned());
        let found = diagnose(&case.facts());
        (found.evidence.join("\n"), found.advice.join("\n"))
    };
    let (evidence, advice) = crashing(143, &[&event("Pulled", "image is there"), &hook]);
    assert!(
        evidence.contains("event FailedPostStartHook of digits-worker-0-0: PostStartHook failed"),
        "{evidence}"
    );
    assert!(!evidence.contains("Pulled"), "{evidence}");
    assert!(advice.contains("lifecycle hook"), "{advice}");
    // The events do not explain another exit code, and without events there is no claim.
    for (code, events) in [(1, &[&hook][..]), (143, &[])] {
        let (evidence, advice) = crashing(code, events);
        assert!(
            !evidence.contains("Hook") && !advice.contains("hook"),
            "{evidence}"
        );
    }
}
