//! The order of the policies: the whole of a plan on one screen.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use roundhouse_api::{ConditionType, JobProgress, TrainingJobStatus, WorkersStatus};
use roundhouse_contract::labels;

use crate::members::{Members, is_alive};
use crate::observed::{Observed, ProgressSample};
use crate::plan::{Action, Event, EventType, Plan, PlanReason};
use crate::status::{counted, percent, rounded, set_condition, time};
use crate::validate::ValidatedJob;
use crate::{checkpoint, children, failure, finish, membership, nodes, suspend};

/// Progress is written at most this often while a job trains.
const PROGRESS_INTERVAL: SignedDuration = SignedDuration::from_secs(10);

/// A plan in the making.
pub(crate) struct Draft<'a> {
    pub(crate) job: &'a ValidatedJob,
    pub(crate) observed: &'a Observed,
    pub(crate) members: Members<'a>,
    pub(crate) now: Timestamp,
    pub(crate) actions: Vec<Action>,
    pub(crate) status: TrainingJobStatus,
    pub(crate) events: Vec<Event>,
    pub(crate) requeue_after: Option<Duration>,
    /// Whether something was noted that must be stored before what it was seen by is replaced.
    pub(crate) recorded: bool,
}

/// What the job needs next.
#[must_use]
pub fn plan(job: &ValidatedJob, observed: &Observed, now: Timestamp) -> Plan {
    let mut draft = Draft::new(job, observed, now);
    if job.deleting {
        draft.status = observed.status.clone();
        return draft.end(PlanReason::Deleting);
    }
    draft.describe();
    if let Some(reason) = finish::after_the_end(&mut draft) {
        return draft.end(reason);
    }
    draft.accept();
    nodes::forget(&mut draft);
    let reason = finish::success(&mut draft)
        .or_else(|| suspend::pause(&mut draft))
        .or_else(|| suspend::resume(&mut draft))
        .or_else(|| children::name_taken(&mut draft))
        .or_else(|| failure::give_up(&mut draft))
        .unwrap_or_else(|| {
            if !draft.recorded {
                children::make(&mut draft);
            }
            membership::form(&mut draft)
        });
    draft.end(reason)
}

/// An event.
pub(crate) fn event(kind: EventType, reason: &str, message: impl Into<String>) -> Event {
    Event {
        kind,
        reason: reason.to_owned(),
        message: message.into(),
    }
}

impl<'a> Draft<'a> {
    fn new(job: &'a ValidatedJob, observed: &'a Observed, now: Timestamp) -> Self {
        Self {
            job,
            observed,
            members: Members::of(job, observed, now),
            now,
            actions: Vec::new(),
            status: observed.status.clone(),
            events: Vec::new(),
            requeue_after: None,
            recorded: false,
        }
    }

    fn end(self, reason: PlanReason) -> Plan {
        let Self {
            actions,
            status,
            events,
            requeue_after,
            ..
        } = self;
        Plan {
            actions,
            status,
            requeue_after,
            reason,
            events,
        }
    }

    /// The parts of the status that only describe.
    fn describe(&mut self) {
        let ready = self
            .members
            .workers
            .values()
            .filter(|pod| pod.ready)
            .count();
        let active = self.members.workers.values();
        let active = active
            .filter(|pod| self.members.is_member(pod) && is_alive(pod) && !pod.unreachable)
            .count();
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let wanted = self.job.replicas;
        self.status.observed_generation = Some(self.job.generation);
        self.status.workers = Some(WorkersStatus {
            wanted,
            ready: count(ready),
            active: count(active),
            summary: format!("{ready}/{wanted}"),
        });
        self.status.replicas = count(self.members.workers.len());
        self.status.selector = Some(format!("{}={}", labels::JOB_UID, self.job.key.uid));
        self.show_progress();
    }

    /// Takes over a newer sample of progress, not too often, but trouble at once.
    fn show_progress(&mut self) {
        let Some(ProgressSample { progress, at }) = &self.observed.progress else {
            return;
        };
        let due = self.status.progress.as_ref().is_none_or(|shown| {
            let is_time = at.duration_since(shown.updated_at.0) >= PROGRESS_INTERVAL;
            let differs =
                shown.progress.step != progress.step || checkpoint::differs(&self.status, progress);
            is_time && differs || checkpoint::is_in_new_trouble(&self.status, progress)
        });
        if due && progress.generation == self.members.generation && !self.status.is_terminal() {
            self.status.progress = Some(JobProgress {
                progress: rounded(progress),
                percent: percent(progress.step, progress.total_steps),
                updated_at: time(*at),
            });
            checkpoint::show(self, progress);
        }
    }

    fn accept(&mut self) {
        if !self.job.suspend {
            self.status.start_time.get_or_insert(time(self.now));
        }
        if !self.status.is_true(ConditionType::Accepted) {
            let (workers, procs) = (self.job.replicas, self.job.procs_per_worker);
            let (min, max) = (self.job.min_replicas, self.job.max_replicas);
            let mut message = format!(
                "{} with {} each",
                counted(workers, "worker"),
                counted(procs, "process")
            );
            if min < max {
                message = format!("{message}, between {min} and {max}");
            }
            let kind = ConditionType::Accepted;
            set_condition(
                &mut self.status,
                kind,
                true,
                "Valid",
                message.clone(),
                self.now,
            );
            self.events
                .push(event(EventType::Normal, "Accepted", message));
        }
    }

    /// Whether it has not trained yet, or not since it was resumed.
    pub(crate) fn is_starting(&self) -> bool {
        let before = self.status.resumed_after_generation.unwrap_or(0);
        self.members.generation == before
    }

    /// Sets the Running condition.
    pub(crate) fn running(&mut self, is_true: bool, reason: &str, message: impl Into<String>) {
        let kind = ConditionType::Running;
        set_condition(&mut self.status, kind, is_true, reason, message, self.now);
    }

    /// Looks again after a time, or sooner if somebody else wants that.
    pub(crate) fn requeue(&mut self, after: Duration) {
        self.requeue_after = Some(self.requeue_after.map_or(after, |other| other.min(after)));
    }
}
