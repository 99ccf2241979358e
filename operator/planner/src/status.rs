//! The status that the user reads: conditions and counts, what a job waits for, why a write is
//! blocked, and the progress of training. Only this file creates conditions.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use roundhouse_api::{ConditionReason, ConditionType, TrainingJobStatus};
use roundhouse_contract::Progress;

pub(crate) mod checkpoint;
pub(crate) mod not_accepted;
pub(crate) mod progress;
pub(crate) mod repeats;
pub(crate) mod waiting;
pub(crate) mod write_blocked;

/// Longest message of a condition in bytes, from the API conventions.
const MAX_MESSAGE_BYTES: usize = 32_768;

/// Rounds a time down to whole seconds, the resolution of times in Kubernetes.
#[must_use]
pub fn time(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

/// The rest of a time span that began at `begun`; `None` when it is over.
pub(crate) fn time_left(begun: Timestamp, span: Duration, now: Timestamp) -> Option<Duration> {
    let left = SignedDuration::try_from(span).ok()? - now.duration_since(begun);
    Duration::try_from(left).ok().filter(|left| !left.is_zero())
}

/// A text that is not longer than a message of a condition may be.
pub(crate) fn bounded(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_MESSAGE_BYTES));
    text
}

/// Sets a condition and keeps its place in the list. Its transition time changes
/// only with its status.
pub fn set_condition(
    status: &mut TrainingJobStatus,
    kind: ConditionType,
    is_true: bool,
    reason: ConditionReason,
    message: impl Into<String>,
    now: Timestamp,
) {
    let observed_generation = status.observed_generation;
    let mut all = status.conditions.iter_mut();
    let old = all.find(|condition| condition.type_ == kind.as_str());
    let state = if is_true { "True" } else { "False" };
    let last_transition_time = match &old {
        Some(old) if old.status == state => old.last_transition_time.clone(),
        Some(_) | None => time(now),
    };
    let message = bounded(message.into());
    let condition = Condition {
        type_: kind.as_str().to_owned(),
        status: state.to_owned(),
        reason: reason.as_str().to_owned(),
        message,
        observed_generation,
        last_transition_time,
    };
    match old {
        Some(old) => *old = condition,
        None => status.conditions.push(condition),
    }
}

/// Sets `state` to the reason of the condition that matters most.
pub(crate) fn set_state(status: &mut TrainingJobStatus) {
    status.state = status.front().map(|front| front.reason.clone());
}

/// Updates the message and the generation of a condition whose status does not change.
pub(crate) fn refresh_condition(
    status: &mut TrainingJobStatus,
    kind: ConditionType,
    message: String,
) {
    let newest = status.observed_generation;
    let mut all = status.conditions.iter_mut();
    if let Some(condition) = all.find(|condition| condition.type_ == kind.as_str()) {
        condition.observed_generation = newest;
        condition.message = message;
    }
}

/// Completed steps in percent, rounded down, such as `42%`.
#[must_use]
pub fn percent(step: u64, total: u64) -> String {
    let percent = step
        .saturating_mul(100)
        .checked_div(total)
        .unwrap_or(0)
        .min(100);
    format!("{percent}%")
}

/// Rounds progress to five significant digits for the status; the agent's metrics have all digits.
#[must_use]
pub fn rounded(progress: &Progress) -> Progress {
    let round = |value: f64| format!("{value:.4e}").parse().unwrap_or(value);
    let Progress {
        generation,
        world_size,
        step,
        total_steps,
        epoch,
        loss,
        skipped_steps,
        repeated_steps,
        last_repeat,
        ..
    } = *progress;
    Progress {
        generation,
        world_size,
        step,
        total_steps,
        epoch,
        loss: loss.map(round),
        skipped_steps,
        repeated_steps,
        last_repeat,
        samples_per_second: progress.samples_per_second.round(),
        eval_accuracy: progress.eval_accuracy.map(round),
        eval_loss: progress.eval_loss.map(round),
        eval_perplexity: progress.eval_perplexity.map(round),
        // The status shows these in another field.
        checkpoint_step: None,
        local_step: None,
        local_error: None,
        held_copy: None,
        checkpoint_at: None,
        best_checkpoint: None,
        checkpoint_error: None,
        // The planner uses it; the status does not show it.
        straggler: None,
    }
}

/// Removes the digits from a message. The used part of a quota, or the number of full nodes,
/// changes often, and such a change is not a new problem.
pub(crate) fn gist(words: &str) -> String {
    words.chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// Formats a number with its noun: `1 worker`, `2 workers`.
#[must_use]
pub fn counted(number: impl std::fmt::Display, noun: &str) -> String {
    let number = number.to_string();
    let plural = match (number.as_str(), noun.strip_suffix("ss")) {
        ("1", _) => "",
        (_, Some(_)) => "es",
        (_, None) => "s",
    };
    format!("{number} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nouns_are_plural_except_after_one() {
        assert_eq!(counted(1_u32, "worker"), "1 worker");
        assert_eq!(counted(0_usize, "worker"), "0 workers");
        assert_eq!(counted(2_u32, "process"), "2 processes");
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn condition_keeps_place_and_time_until_status_changes() {
        let mut status = TrainingJobStatus::default();
        let (running, accepted) = (ConditionType::Running, ConditionType::Accepted);
        let waiting = ConditionReason::WaitingForWorkers;
        set_condition(&mut status, running, false, waiting, "a", at(1));
        set_condition(
            &mut status,
            accepted,
            true,
            ConditionReason::Valid,
            "b",
            at(2),
        );
        let unschedulable = ConditionReason::Unschedulable;
        set_condition(&mut status, running, false, unschedulable, "c", at(3));
        let first = &status.conditions[0];
        let is = (first.type_.as_str(), first.last_transition_time.0);
        assert_eq!(is, ("Running", at(1)));
        set_condition(
            &mut status,
            running,
            true,
            ConditionReason::Training,
            "d",
            at(4),
        );
        assert_eq!(status.conditions[0].last_transition_time.0, at(4));
        assert_eq!(status.conditions.len(), 2);
    }

    #[test]
    fn percent_is_rounded_down_and_zero_without_total() {
        assert_eq!(percent(999, 1000), "99%");
        assert_eq!(percent(0, 0), "0%");
    }
}
