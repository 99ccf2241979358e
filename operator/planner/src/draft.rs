//! A draft of a plan: what every policy reads, and what it adds to.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use roundhouse_api::{
    ConditionReason, ConditionType, EventReason, Replacements, TrainingJobStatus,
};
use roundhouse_contract::Incarnation;

use crate::generation::members::Members;
use crate::observed::{Observed, Pod};
use crate::plan::{Action, Event, EventType, MAX_ACTIONS, Plan, PlanReason};
use crate::rejection::Rejection;
use crate::replicas::{Replica, Replicas};
use crate::status::progress;
use crate::status::{set_condition, set_state, time};
use crate::validate::ValidatedJob;

pub(crate) struct Draft<'a> {
    /// The job; if its replicas have several pods, as if each were one: see
    /// [`ValidatedJob::with_replicas_as_workers`].
    pub(crate) job: &'a ValidatedJob,
    /// The observed state; if replicas have several pods, with a pod for each: see
    /// [`Replicas::view`].
    pub(crate) observed: &'a Observed,
    /// The job as its user wrote it.
    pub(crate) own_job: &'a ValidatedJob,
    /// The pods as they are.
    pub(crate) pods: &'a [Pod],
    /// `None` if each replica is one pod.
    pub(crate) replicas: Option<&'a Replicas<'a>>,
    /// Why no new pods are created, if the job is not accepted.
    pub(crate) rejection: Option<&'a Rejection>,
    pub(crate) members: Members<'a>,
    pub(crate) now: Timestamp,
    pub(crate) actions: Vec<Action>,
    pub(crate) status: TrainingJobStatus,
    pub(crate) events: Vec<Event>,
    pub(crate) requeue_after: Option<Duration>,
    /// Whether this plan records a fact in the status that must be stored before the plan replaces
    /// the object that shows it.
    pub(crate) recorded: bool,
    /// The count of replacements before this plan, if this plan replaces pods.
    pub(crate) seen_replacements: Option<Replacements>,
    /// Whether the job would end now if the observed objects were known to be current.
    pub(crate) needs_fresh: bool,
}

impl<'a> Draft<'a> {
    pub(crate) fn new(
        job: &'a ValidatedJob,
        rejection: Option<&'a Rejection>,
        observed: &'a Observed,
        now: Timestamp,
    ) -> Self {
        Self {
            job,
            observed,
            own_job: job,
            pods: &observed.pods,
            replicas: None,
            rejection,
            members: Members::of(job, observed, now),
            now,
            actions: Vec::new(),
            status: observed.status.clone(),
            events: Vec::new(),
            requeue_after: None,
            recorded: false,
            seen_replacements: None,
            needs_fresh: false,
        }
    }

    /// The draft for replicas of several pods. `own_job` and `pods` are the job and its pods before
    /// the pods of each replica were combined.
    pub(crate) fn for_replicas(
        self,
        own_job: &'a ValidatedJob,
        pods: &'a [Pod],
        replicas: &'a Replicas<'a>,
    ) -> Self {
        let mut draft = Self {
            own_job,
            pods,
            replicas: Some(replicas),
            ..self
        };
        // A replica with one condemned pod is condemned.
        let all = draft.members.workers.values().copied();
        let bad = all.filter(|worker| {
            let replica = worker.index.and_then(|index| replicas.all.get(&index));
            let mut pods = replica.into_iter().flat_map(Replica::present);
            pods.any(|pod| replicas.condemned.contains(&*pod.uid))
        });
        let bad: Vec<&Pod> = bad.collect();
        draft.members.condemn(&bad);
        draft
    }

    /// Pods that are not terminating by their index, of each the highest attempt.
    pub(crate) fn pods_by_index(&self) -> &BTreeMap<u32, &'a Pod> {
        let of_replicas = self.replicas.map(|replicas| &replicas.pods);
        of_replicas.unwrap_or(&self.members.workers)
    }

    /// The UID by which policies for workers know the worker of a pod.
    pub(crate) fn worker_uid<'p>(&self, pod: &'p Pod) -> &'p str
    where
        'a: 'p,
    {
        let replica = self.replicas.and_then(|replicas| replicas.replica_of(pod));
        let worker = replica.and_then(|replica| self.members.workers.get(&replica.index));
        worker.map_or(&pod.uid, |worker| &worker.uid)
    }

    /// The incarnation of the pod's worker while the pod's container had this number of restarts.
    pub(crate) fn incarnation_of(&self, pod: &Pod, restarts: u32) -> Incarnation {
        let replica = self.replicas.and_then(|replicas| replicas.replica_of(pod));
        replica.map_or_else(
            || Incarnation {
                pod_uid: pod.uid.clone(),
                restarts,
            },
            |replica| replica.incarnation_with(pod, restarts),
        )
    }

    pub(crate) fn end(self, reason: PlanReason) -> Plan {
        let Self {
            mut actions,
            mut status,
            events,
            requeue_after,
            seen_replacements,
            needs_fresh,
            ..
        } = self;
        actions.truncate(MAX_ACTIONS);
        set_state(&mut status);
        Plan {
            actions,
            status,
            requeue_after,
            reason,
            events,
            seen_replacements,
            needs_fresh,
        }
    }

    /// Whether the job has not trained yet, or not since it was resumed.
    pub(crate) fn is_starting(&self) -> bool {
        let before = self.status.resumed_after_generation.unwrap_or(0);
        self.members.generation == before
    }

    /// Whether the job is starting and one of its workers has a scheduling gate: the job waits in a
    /// queue, such as Kueue's. Its deadlines do not run meanwhile.
    pub(crate) fn is_queued(&self) -> bool {
        let mut workers = self.members.workers.values();
        self.is_starting() && workers.any(|pod| !pod.gates.is_empty())
    }

    /// Sets the condition Running, whose reason and message explain the job to its user.
    pub(crate) fn running(
        &mut self,
        is_true: bool,
        reason: ConditionReason,
        message: impl Into<String>,
    ) {
        let kind = ConditionType::Running;
        set_condition(&mut self.status, kind, is_true, reason, message, self.now);
    }

    /// Requeues the job after this time, or sooner if another policy asked for that.
    pub(crate) fn requeue(&mut self, after: Duration) {
        self.requeue_after = Some(self.requeue_after.map_or(after, |other| other.min(after)));
    }

    /// Fails the job. Later plans delete its pods, once the status of this plan is stored:
    /// otherwise the reason would be lost with them.
    pub(crate) fn fail(&mut self, reason: ConditionReason, message: String) -> PlanReason {
        // The status of a job that has ended does not change any more.
        progress::show_last(self);
        self.running(false, reason, message.clone());
        self.complete(ConditionType::Failed, reason, message.clone());
        self.events.push(event(EventReason::Failed, message));
        PlanReason::Failed
    }

    /// Sets the condition that ends the job.
    pub(crate) fn complete(
        &mut self,
        kind: ConditionType,
        reason: ConditionReason,
        message: String,
    ) {
        self.status.completion_time = Some(time(self.now));
        // A finished job waits for no write and no queue, and its status changes no more.
        self.status.blocked.clear();
        self.status.queued = false;
        self.status.unschedulable = None;
        set_condition(&mut self.status, kind, true, reason, message, self.now);
    }
}

pub(crate) fn event(reason: EventReason, message: impl Into<String>) -> Event {
    let kind = if reason.is_warning() {
        EventType::Warning
    } else {
        EventType::Normal
    };
    Event {
        kind,
        reason: reason.as_str().to_owned(),
        message: message.into(),
    }
}
