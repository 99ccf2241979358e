//! A job as `status` shows it: a pure function of the [`Facts`], and the document of `-o json` and `-o yaml`.

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

pub(crate) use summary::{numbers, seconds_left, span_of};

use ranks::Rank;
use span::{ago, left};

/// Events that are shown, the newest of them.
const MAX_EVENTS: usize = 10;

/// A job.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct JobView {
    /// Name of the job.
    pub(crate) name: String,
    /// Its namespace.
    pub(crate) namespace: String,
    /// What the job does or waits for, in one word.
    pub(crate) state: String,
    /// What the job does, in sentences.
    pub(crate) summary: Vec<String>,
    /// Its conditions, the one that matters most first.
    pub(crate) conditions: Vec<ConditionView>,
    /// Workers by state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) workers: Option<WorkersStatus>,
    /// The newest generation, 0 before the first.
    pub(crate) generation: u64,
    /// Ranks of that generation.
    pub(crate) world_size: u32,
    /// How far training has come.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) progress: Option<Progress>,
    /// Seconds until the last step at the present speed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seconds_left: Option<u64>,
    /// The newest checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) checkpoint: Option<CheckpointStatus>,
    /// Failures so far.
    pub(crate) incidents: Incidents,
    /// The newest failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_failure: Option<LastFailure>,
    /// One for each process of each worker.
    pub(crate) ranks: Vec<Rank>,
    /// The newest events about the job and its pods, oldest first.
    pub(crate) events: Vec<EventView>,
    /// What happens next, and when.
    pub(crate) next: Vec<String>,
}

/// A condition.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ConditionView {
    /// Its type.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// `True`, `False` or `Unknown`.
    pub(crate) status: String,
    /// Why, in one word.
    pub(crate) reason: String,
    /// Why, in a sentence.
    pub(crate) message: String,
    /// When its status changed.
    pub(crate) since: Timestamp,
}

/// An event.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EventView {
    /// When it was seen last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<Timestamp>,
    /// `Normal` or `Warning`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// What it is about: `Pod digits-worker-0-0`.
    pub(crate) about: String,
    /// In one word.
    pub(crate) reason: String,
    /// In a sentence.
    pub(crate) message: String,
}

impl JobView {
    /// Of what was read.
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

/// What a job is called that the operator has not seen yet.
pub(crate) fn state(reason: &str) -> String {
    if reason.is_empty() {
        "Unseen".to_owned()
    } else {
        plain(reason)
    }
}

/// When an event was seen last.
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

/// How long ago something was.
pub(crate) fn since(at: Option<Timestamp>, now: Timestamp) -> String {
    at.map_or_else(|| "-".to_owned(), |at| ago(at, now))
}

/// How long until something.
pub(crate) fn until(at: Timestamp, now: Timestamp) -> String {
    left(at.duration_since(now))
}
