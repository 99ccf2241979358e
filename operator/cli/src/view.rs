//! A job as `status` shows it, as text and as the document of `-o json` and `-o yaml`: a pure
//! function of the [`Facts`].

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use roundhouse_api::{CheckpointStatus, Incidents, LastFailure, WorkersStatus};
use roundhouse_contract::Progress;
use serde::Serialize;

use crate::facts::Facts;
use crate::out::plain;

pub(crate) mod exit;
pub(crate) mod list;
mod next;
pub(crate) mod ranks;
pub(crate) mod span;
mod summary;
#[cfg(test)]
mod tests;

pub(crate) use summary::{known_speed, numbers, seconds_left, span_of, speed_text};

use ranks::Rank;
use span::{ago, left};

/// Most events to show, the newest ones.
const MAX_EVENTS: usize = 10;

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct JobView {
    pub(crate) name: String,
    pub(crate) namespace: String,
    /// The state of the job in one word.
    pub(crate) state: String,
    /// The state of the job in sentences.
    pub(crate) summary: Vec<String>,
    /// The conditions, the most important one first.
    pub(crate) conditions: Vec<ConditionView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) workers: Option<WorkersStatus>,
    /// The number of the newest generation; 0 before the first.
    pub(crate) generation: u64,
    /// Number of ranks of that generation.
    pub(crate) world_size: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) progress: Option<Progress>,
    /// Seconds until the last step at the present speed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seconds_left: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) checkpoint: Option<CheckpointStatus>,
    pub(crate) incidents: Incidents,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_failure: Option<LastFailure>,
    /// One entry for each process of each worker.
    pub(crate) ranks: Vec<Rank>,
    /// The newest events about the job and its pods, oldest first.
    pub(crate) events: Vec<EventView>,
    /// What happens next, and when.
    pub(crate) next: Vec<String>,
}

/// A condition of the job.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ConditionView {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// `True`, `False` or `Unknown`.
    pub(crate) status: String,
    pub(crate) reason: String,
    pub(crate) message: String,
    /// The time of the last change of `status`.
    pub(crate) since: Timestamp,
}

/// An event about the job or one of its pods.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EventView {
    /// Time of the last occurrence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<Timestamp>,
    /// The type: `Normal` or `Warning`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// Kind and name of the object, such as `Pod digits-worker-0-0`.
    pub(crate) about: String,
    pub(crate) reason: String,
    pub(crate) message: String,
}

impl JobView {
    pub(crate) fn of(facts: &Facts) -> Self {
        let status = facts.status();
        let membership = status.membership.as_ref();
        let (reason, _) = facts.front();
        let progress = facts.progress();
        let front = status.front().map(|front| front.type_.clone());
        let mut conditions: Vec<&Condition> = status.conditions.iter().collect();
        conditions.sort_by_key(|condition| Some(&condition.type_) != front.as_ref());
        let conditions = conditions.into_iter().map(|condition| ConditionView {
            kind: condition.type_.clone(),
            status: condition.status.clone(),
            reason: condition.reason.clone(),
            message: condition.message.clone(),
            since: condition.last_transition_time.0,
        });
        let skipped = facts.events.len().saturating_sub(MAX_EVENTS);
        Self {
            name: facts.name(),
            namespace: facts.job.namespace().unwrap_or_default(),
            state: state(&reason),
            summary: summary::sentences(facts),
            conditions: conditions.collect(),
            workers: status.workers.clone(),
            generation: facts.generation(),
            world_size: membership.map_or(0, |membership| membership.world_size),
            seconds_left: progress
                .as_ref()
                .and_then(|it| seconds_left(&facts.job, it)),
            progress,
            checkpoint: status.checkpoint.clone(),
            incidents: status.incidents.clone(),
            last_failure: status.last_failure.clone(),
            ranks: ranks::of(facts),
            events: facts.events.iter().skip(skipped).map(event).collect(),
            next: next::of(facts),
        }
    }
}

/// The state of a job with this reason; `Unseen` for an empty reason, before the operator has seen
/// it.
pub(crate) fn state(reason: &str) -> String {
    if reason.is_empty() {
        "Unseen".to_owned()
    } else {
        plain(reason)
    }
}

/// Time of an event's last occurrence.
pub(crate) fn time_of(event: &Event) -> Option<Timestamp> {
    let series = event
        .series
        .as_ref()
        .and_then(|it| it.last_observed_time.as_ref());
    let first = event.event_time.as_ref().map(|it| it.0);
    let last = event.last_timestamp.as_ref().map(|it| it.0);
    let created = event.metadata.creation_timestamp.as_ref().map(|it| it.0);
    series.map(|it| it.0).or(last).or(first).or(created)
}

fn event(event: &Event) -> EventView {
    let about = &event.involved_object;
    let word = |word: &Option<String>| word.clone().unwrap_or_default();
    EventView {
        at: time_of(event),
        kind: word(&event.type_),
        about: format!("{} {}", word(&about.kind), word(&about.name)),
        reason: word(&event.reason),
        message: word(&event.message),
    }
}

/// Time since `at`, such as `3m10s`; `-` if it is unknown.
pub(crate) fn since(at: Option<Timestamp>, now: Timestamp) -> String {
    at.map_or_else(|| "-".to_owned(), |at| ago(at, now))
}

/// Time until `at`, such as `3m10s`.
pub(crate) fn until(at: Timestamp, now: Timestamp) -> String {
    left(at.duration_since(now))
}
