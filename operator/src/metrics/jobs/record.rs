//! What the metrics remember of one job between two reconciles.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use roundhouse_api::{ConditionType, TrainingJobStatus, WorkersStatus};

use super::gpus::{Account, Gpus};
use super::milestones::Milestone;
use crate::metrics::labels;

/// How long the series of a job stay after its end, so that the last scrape has its final values.
const SERIES_TTL: Duration = Duration::from_mins(10);

#[derive(Debug)]
pub(super) struct Record {
    pub(super) namespace: String,
    pub(super) name: String,
    /// The job's state as a label; `None` before its first reconcile.
    pub(super) state: Option<&'static str>,
    /// The job's workers, while it has not ended.
    pub(super) workers: Option<WorkersStatus>,
    pub(super) account: Account,
    pub(super) incidents: BTreeMap<&'static str, u64>,
    pub(super) avoided: BTreeMap<String, u64>,
    pub(super) repeated_steps: u64,
    /// The last time at which the job had not ended or held a GPU.
    active: Option<Instant>,
    /// Since when the job recovers from an incident.
    recovers_since: Option<Instant>,
    /// The generation in which the job last recovered. Each incident has at most one recovery.
    recovered_in: u64,
}

impl Record {
    pub(super) fn new(namespace: String, name: String) -> Self {
        Self {
            namespace,
            name,
            state: None,
            workers: None,
            account: Account::default(),
            incidents: BTreeMap::new(),
            avoided: BTreeMap::new(),
            repeated_steps: 0,
            active: None,
            recovers_since: None,
            recovered_in: 0,
        }
    }

    /// Takes the workers from this status. The pods of the job hold these GPUs.
    pub(super) fn see(&mut self, status: &TrainingJobStatus, gpus: Gpus, now: Instant) {
        let is_over = status.is_terminal();
        // A job that held GPUs until now was active until now.
        let held = gpus.held > 0 || self.account.gpus().held > 0;
        if !is_over || held {
            self.active = Some(now);
        }
        self.account.set(gpus, now);
        // A suspended job has no workers, and none of them counts as missing.
        let is_suspended = status.is_true(ConditionType::Suspended);
        self.workers = status.workers.clone().filter(|_| !is_over && !is_suspended);
    }

    /// Takes the state from this status, if it has one.
    pub(super) fn show(&mut self, status: &TrainingJobStatus) {
        if status.front().is_some() {
            self.state = Some(labels::state(status.state()));
        }
    }

    /// Whether the series of the job are exposed: until [`SERIES_TTL`] after its end.
    pub(super) fn is_shown(&self, now: Instant) -> bool {
        self.active
            .is_some_and(|active| now.saturating_duration_since(active) < SERIES_TTL)
    }

    /// The API server stored a new status. Returns the milestones that the job reached with it.
    pub(super) fn stored(
        &mut self,
        before: &TrainingJobStatus,
        after: &TrainingJobStatus,
        now: Instant,
        time: Timestamp,
    ) -> Vec<(Milestone, Duration)> {
        self.count_incidents(before, after, now);
        self.count_avoided(before, after);
        self.repeated_steps += repeated_steps(after).saturating_sub(repeated_steps(before));
        if after.is_terminal() || after.is_true(ConditionType::Suspended) {
            self.recovers_since = None;
        }
        let since_start = after.start_time.as_ref().map(|start| since(start.0, time));
        let first = after.resumed_after_generation.unwrap_or(0) + 1;
        let (old, new) = (generation(before), generation(after));
        let running = |status: &TrainingJobStatus| status.is_true(ConditionType::Running);
        let is_new_run = !running(before) && running(after);
        let lobby = since_start.filter(|_| old < first && new == first);
        let start = since_start.filter(|_| is_new_run && new == first);
        let recover = is_new_run
            .then(|| self.recovered(before, new, now, time))
            .flatten();
        let reached = [
            (Milestone::Lobby, lobby),
            (Milestone::Start, start),
            (Milestone::Recover, recover),
        ];
        let reached = reached.into_iter();
        reached
            .filter_map(|(what, took)| Some((what, took?)))
            .collect()
    }

    fn count_incidents(
        &mut self,
        before: &TrainingJobStatus,
        after: &TrainingJobStatus,
        now: Instant,
    ) {
        let new = after.incidents.total.saturating_sub(before.incidents.total);
        if new == 0 {
            return;
        }
        let reason = after.last_failure.as_ref().map(|last| &last.reason);
        let reason = reason.map_or(labels::OTHER, |reason| labels::incident(reason));
        *self.incidents.entry(reason).or_default() += u64::from(new);
        self.recovers_since.get_or_insert(now);
    }

    fn count_avoided(&mut self, before: &TrainingJobStatus, after: &TrainingJobStatus) {
        for avoided in &after.avoid_nodes {
            let known = before
                .avoid_nodes
                .iter()
                .find(|old| old.node == avoided.node);
            if known.is_none_or(|known| known.until < avoided.until) {
                *self.avoided.entry(avoided.node.clone()).or_default() += 1;
            }
        }
    }

    /// The duration of the recovery that ends with this generation. If an earlier operator process
    /// counted the incident, the recovery began at the failure that the status shows.
    fn recovered(
        &mut self,
        before: &TrainingJobStatus,
        generation: u64,
        now: Instant,
        time: Timestamp,
    ) -> Option<Duration> {
        let known = self.recovers_since.take();
        let known = known.map(|since| now.saturating_duration_since(since));
        let is_own = before.incidents.last_generation.map(|last| last + 1) == Some(generation);
        let is_unrecovered = is_own && generation > self.recovered_in;
        let failure = before.last_failure.as_ref().filter(|_| is_unrecovered);
        self.recovered_in = generation;
        known.or_else(|| Some(since(failure?.time.0, time)))
    }
}

fn generation(status: &TrainingJobStatus) -> u64 {
    status
        .membership
        .as_ref()
        .map_or(0, |newest| newest.generation)
}

fn repeated_steps(status: &TrainingJobStatus) -> u64 {
    let progress = status.progress.as_ref();
    progress.map_or(0, |shown| shown.progress.repeated_steps)
}

/// The time since a moment; zero for a moment in the future, which another clock wrote.
fn since(moment: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(moment)).unwrap_or_default()
}
