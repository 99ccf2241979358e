//! Plans for jobs that cannot go on as they are: the user is told, once.

use jiff::Timestamp;
use roundhouse_api::{ConditionType, TrainingJob, TrainingJobStatus};

use crate::decide::event;
use crate::plan::{EventType, Plan, PlanReason};
use crate::status::set_condition;
use crate::validate::InvalidSpec;

/// What a job that cannot be run needs: to be told so.
#[must_use]
pub fn plan_invalid(job: &TrainingJob, error: &InvalidSpec, now: Timestamp) -> Plan {
    let mut status = job.status.clone().unwrap_or_default();
    let mut events = Vec::new();
    if !status.is_terminal() {
        status.observed_generation = job.metadata.generation;
        let told = |s: &TrainingJobStatus| {
            s.condition(ConditionType::Accepted)
                .map(|condition| condition.message.clone())
        };
        let before = told(&status);
        let kind = ConditionType::Accepted;
        set_condition(
            &mut status,
            kind,
            false,
            "InvalidSpec",
            error.to_string(),
            now,
        );
        if told(&status) != before {
            events.push(event(EventType::Warning, "InvalidSpec", error.to_string()));
        }
    }
    let reason = PlanReason::InvalidSpec;
    Plan {
        actions: Vec::new(),
        status,
        requeue_after: None,
        reason,
        events,
    }
}

/// Reason of the Running condition meanwhile.
pub(crate) const REFUSED: &str = "Refused";

/// A plan that the API server did not let happen: told in its words, once. What the plan has decided is
/// stored, so that nothing is decided twice. `before`: the status as last written.
#[must_use]
pub fn plan_refused(plan: &Plan, before: &TrainingJobStatus, words: &str, now: Timestamp) -> Plan {
    let mut refused = plan.clone();
    let message = format!("the API server refused: {words}");
    let told = before
        .conditions
        .first()
        .is_some_and(|front| front.message == message);
    if !refused.status.is_terminal() {
        let kind = ConditionType::Running;
        set_condition(
            &mut refused.status,
            kind,
            false,
            REFUSED,
            message.clone(),
            now,
        );
    }
    if !told {
        refused
            .events
            .push(event(EventType::Warning, REFUSED, message));
    }
    refused
}
