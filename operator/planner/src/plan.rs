//! The result of planning: what the operator must do.

use std::time::Duration;

use roundhouse_api::{Gang, Replacements, TrainingJobStatus};
use roundhouse_contract::earlier::Earlier;
use roundhouse_contract::{BuiltFrom, CopyPair, Membership, ReplicaPlace};

use crate::group::PodGroup;

/// Most actions of one plan. They take a second or less with a usual API server. After each plan
/// the job is reconciled again, because it may have changed meanwhile.
pub const MAX_ACTIONS: usize = 256;

/// What to do for one job, in this order: actions, status, events.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Writes to other objects, in order; at most [`MAX_ACTIONS`].
    pub actions: Vec<Action>,
    /// The whole status; written if it differs.
    pub status: TrainingJobStatus,
    /// Requeue the job after this time, even if nothing changes.
    pub requeue_after: Option<Duration>,
    /// The reason of the plan; logged when it changes.
    pub reason: PlanReason,
    /// Events to publish after the status is written.
    pub events: Vec<Event>,
    /// The count of replacements before this plan, if this plan replaces pods.
    pub seen_replacements: Option<Replacements>,
    /// Whether the job would be ended or deleted because of its time if the observed state
    /// were known to be current. The caller must then confirm the state
    /// ([`crate::Observed::fresh`]) and plan again.
    pub needs_fresh: bool,
}

impl Plan {
    /// The plan to use if its writes are not done, or not yet: its status counts no replacement of
    /// this plan. Otherwise each try would count the same pods again. Writes that took effect after
    /// all are observed later.
    #[must_use]
    pub fn without_replacements(&self) -> Self {
        let mut plan = self.clone();
        if let Some(seen) = plan.seen_replacements.take() {
            plan.status.replacements = seen;
        }
        plan
    }

    /// Whether the plan cannot be undone: it deletes a pod or the job, counts an incident, ends the
    /// job, or stores that a member has completed, which ends the job later.
    #[must_use]
    pub fn is_irrevocable(&self, before: &TrainingJobStatus) -> bool {
        let completed = stored_completions(&self.status);
        let stores = !completed.is_empty() && completed != stored_completions(before);
        let deletes =
            |action: &Action| matches!(action, Action::DeletePod { .. } | Action::DeleteJob { .. });
        let ends = self.status.is_terminal() && !before.is_terminal();
        ends || stores
            || self.status.incidents != before.incidents
            || self.actions.iter().any(deletes)
    }
}

/// The node ranks of completed members in a status.
fn stored_completions(status: &TrainingJobStatus) -> &str {
    let newest = status.membership.as_ref();
    newest.map_or("", |it| it.completed.as_str())
}

#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Create the headless Service.
    CreateService,
    CreateNetworkPolicy,
    /// Repair the Service, if it is still the one that was observed.
    RepairService {
        version: u64,
    },
    /// Repair the NetworkPolicy, if it is still the one that was observed.
    RepairNetworkPolicy {
        version: u64,
    },
    /// Create the PodGroup of a gang scheduler, or change it.
    ApplyPodGroup {
        gang: Gang,
        /// Which of the job's gangs it is for; 0 for the first one.
        number: u32,
        /// The content with which it is created, or to which it is changed.
        group: PodGroup,
        /// UID as the precondition of a change; `None` if there is no PodGroup yet.
        uid: Option<String>,
    },
    /// Delete the PodGroup, if it is still the one that was observed.
    DeletePodGroup {
        gang: Gang,
        /// Which of the job's gangs it is for; 0 for the first one.
        number: u32,
        uid: String,
    },
    /// Create the pod of a worker's attempt.
    CreateWorker {
        /// Index of the worker in its job, from 0.
        index: u32,
        attempt: u32,
        /// The replica whose topology domain the pod should share; `None` for a spare, and in jobs
        /// without a domain for each replica.
        replica: Option<u32>,
        /// Which of the job's gangs it is in; 0 for the first one, and without a gang scheduler.
        gang: u32,
        /// Nodes on which it must not be placed.
        avoid: Vec<String>,
        /// Nodes that do not answer: it is placed on other nodes if they have room.
        lost: Vec<String>,
        /// The record of the job's other pods, whose operator settings the pod is built with.
        /// `None` for the current settings.
        built_like: Option<BuiltFrom>,
    },
    /// Write a pod's membership, if it is still the pod that was observed.
    IssueMembership {
        /// Name of the pod.
        pod: String,
        resource_version: String,
        membership: Membership,
        /// Earlier generations in which it was a member and that may still train.
        earlier: Vec<Earlier>,
    },
    /// Write a pod's place in a life of its replica, if it is still the pod that was observed.
    PlaceInReplica {
        /// Name of the pod.
        pod: String,
        resource_version: String,
        place: ReplicaPlace,
    },
    /// Write the pod with which a pod has copies of the state in pairs, if it is still the pod that
    /// was observed.
    PairCopies {
        /// Name of the pod.
        pod: String,
        resource_version: String,
        /// `None`: the pod is in no pair any more.
        pair: Option<CopyPair>,
    },
    /// Mark in a pod's annotation that its group in a queue gets no new pods, if it is still the
    /// pod that was observed.
    EndGroup {
        /// Name of the pod.
        pod: String,
        resource_version: String,
    },
    /// Mark in a pod's label that it attracts no other pods to its topology domain, if it is still
    /// the pod that was observed.
    LeaveDomain {
        /// Name of the pod.
        pod: String,
        resource_version: String,
    },
    /// Write the label of a pod that names its replica, if it is still the pod that was observed.
    LabelReplica {
        /// Name of the pod.
        pod: String,
        resource_version: String,
        /// `None` removes the label: the pod is a spare.
        replica: Option<u32>,
    },
    /// Delete a pod, if it is still the pod that was observed.
    DeletePod {
        /// Name of the pod.
        pod: String,
        uid: String,
        /// Precondition, if the deletion depends on the state of the pod: the pod
        /// may have completed since.
        resource_version: Option<String>,
        reason: DeleteReason,
    },
    /// Delete the job, whose time to live is over, if it is still the job that was observed.
    DeleteJob {
        uid: String,
        /// Precondition: the job was not edited since.
        resource_version: String,
    },
}

/// Why a pod is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeleteReason {
    /// The job has ended.
    JobEnded,
    /// The job is suspended.
    Suspended,
    /// The spec was edited since it was built, while the job was suspended.
    Outdated,
    /// Fewer workers are wanted.
    ScaledDown,
    /// It fits no replica that lacks a pod: it is in another topology domain, or was created for
    /// the domain of another replica.
    FitsNoReplica,
    /// It has ended and does not restart; another attempt replaces it.
    Replaced,
    /// Its node has a fault; another attempt replaces it on another node.
    BadNode,
    /// Its node does not answer; another attempt replaces it.
    NodeLost,
    /// Its agent does not answer, although others do; another attempt replaces it.
    AgentSilent,
    /// There are two pods of one worker; the later attempt stays.
    Surplus,
}

/// The case that a plan decided on: logged when it changes, and a label of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlanReason {
    /// The job is not accepted, and it has no workers that could train or
    /// that this version understands.
    NotAccepted,
    /// The name of an object that the job needs belongs to another object.
    NameTaken,
    /// The gang scheduler of the job is not installed.
    GangSchedulerMissing,
    /// The job is suspended: it has no pods, or they are about to leave.
    Suspended,
    /// The job is resumed, and waits for terminating workers.
    Resuming,
    /// The operator creates pods.
    CreatingWorkers,
    /// Not all workers are ready yet.
    WaitingForWorkers,
    /// The operator stores the next generation's number before any pod receives it.
    RaisingGeneration,
    /// The operator writes the members' places into their pods.
    IssuingMembership,
    Training,
    /// A member has completed, and the others are about to.
    Finishing,
    /// A member is gone; the others return to the lobby.
    Recovering,
    /// All members have completed successfully.
    Succeeded,
    /// The job has failed permanently.
    Failed,
    /// The job is being deleted; Kubernetes removes what it owns.
    Deleting,
}

/// A Kubernetes Event about the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub kind: EventType,
    pub reason: String,
    pub message: String,
}

/// Type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    /// The event needs no attention.
    Normal,
    /// A person should look at it.
    Warning,
}
