//! The status that the user reads: conditions and counts, what a job waits for, why a write is blocked, how far training has
//! come. This file is the one place that makes conditions.

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

/// Longest message of a condition, as the API conventions want it.
const MAX_MESSAGE_BYTES: usize = 32_768;

/// Kubernetes' clock has whole seconds.
#[must_use]
pub fn time(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

/// What is left of a span of time that began at a moment; `None` when it is over.
pub(crate) fn time_left(begun: Timestamp, span: Duration, now: Timestamp) -> Option<Duration> {
    let left = SignedDuration::try_from(span).ok()? - now.duration_since(begun);
    Duration::try_from(left).ok().filter(|left| !left.is_zero())
}

/// Sets a condition, at its place. Its transition time stays unless its status changes.
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
    let mut message = message.into();
    message.truncate(message.floor_char_boundary(MAX_MESSAGE_BYTES));
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

/// Says in one word what the job does or waits for: the reason of the condition that matters most.
pub(crate) fn tell_state(status: &mut TrainingJobStatus) {
    status.state = status.front().map(|front| front.reason.clone());
}

/// Gives a condition that stays as it is a newer message, and the newest generation.
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

/// Steps done of all, rounded down, such as `42%`.
#[must_use]
pub fn percent(step: u64, total: u64) -> String {
    let percent = step
        .saturating_mul(100)
        .checked_div(total)
        .unwrap_or(0)
        .min(100);
    format!("{percent}%")
}

/// Progress with five significant digits, for people; the agent's metrics have all of them.
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
        // The status has a place of its own for them.
        checkpoint_step: None,
        checkpoint_at: None,
        best_checkpoint: None,
        checkpoint_error: None,
        // It is for the planner, not for the status.
        straggler: None,
    }
}

/// Words without their numbers: how much of a quota is used, or how many nodes have no room, changes from moment to moment
/// and is no other trouble.
pub(crate) fn gist(words: &str) -> String {
    words.chars().filter(|c| !c.is_ascii_digit()).collect()
}

/// A number of things, as people say it: one worker, two workers.
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
    fn one_is_not_many() {
        assert_eq!(counted(1_u32, "worker"), "1 worker");
        assert_eq!(counted(0_usize, "worker"), "0 workers");
        assert_eq!(counted(2_u32, "process"), "2 processes");
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_condition_stays_at_its_place_and_keeps_its_time_while_its_status_stays() {
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
    fn percent_is_rounded_down_and_never_divides_by_zero() {
        assert_eq!(percent(999, 1000), "99%");
        assert_eq!(percent(0, 0), "0%");
    }
}
