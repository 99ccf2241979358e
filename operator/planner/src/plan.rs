//! What is to be done: the result of planning.

use std::time::Duration;

use roundhouse_api::{Gang, Replacements, TrainingJobStatus};
use roundhouse_contract::earlier::Earlier;
use roundhouse_contract::{BuiltFrom, Membership};

use crate::group::PodGroup;

/// Most actions of one plan: a second or less at a usual API server. Between two plans the job is looked at again, which
/// may be wanted otherwise by then.
pub const MAX_ACTIONS: usize = 256;

/// What to do for one job, in this order: actions, then the status, then events.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Writes to other objects, in order; at most [`MAX_ACTIONS`].
    pub actions: Vec<Action>,
    /// The whole status; written if it differs.
    pub status: TrainingJobStatus,
    /// Look again after this long, even if nothing changes.
    pub requeue_after: Option<Duration>,
    /// Why, in one word; logged when it changes.
    pub reason: PlanReason,
    /// Told after the status is written.
    pub events: Vec<Event>,
    /// The count of replacements without those of this plan, if it makes some.
    pub seen_replacements: Option<Replacements>,
    /// Whether the job would be ended or deleted, because its time is over, if what was observed were known to be fresh. Confirm
    /// that ([`crate::Observed::fresh`]) and plan again.
    pub needs_fresh: bool,
}

impl Plan {
    /// The plan for the case that its writes are not done, or not yet: its status counts no replacement of this plan, or each try
    /// would count the same pods once more. What was done all the same is seen later.
    #[must_use]
    pub fn without_replacements(&self) -> Self {
        let mut plan = self.clone();
        if let Some(seen) = plan.seen_replacements.take() {
            plan.status.replacements = seen;
        }
        plan
    }

    /// Whether it does what cannot be taken back: it deletes a pod or the job, counts an incident or ends the job.
    #[must_use]
    pub fn is_irrevocable(&self, before: &TrainingJobStatus) -> bool {
        let deletes =
            |action: &Action| matches!(action, Action::DeletePod { .. } | Action::DeleteJob { .. });
        let ends = self.status.is_terminal() && !before.is_terminal();
        ends || self.status.incidents != before.incidents || self.actions.iter().any(deletes)
    }
}

/// One write.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Create the headless Service.
    CreateService,
    /// Create the NetworkPolicy.
    CreateNetworkPolicy,
    /// Make the Service what it was, if it is still the one that was observed.
    RepairService {
        /// Precondition.
        version: u64,
    },
    /// Make the NetworkPolicy what it was, if it is still the one that was observed.
    RepairNetworkPolicy {
        /// Precondition.
        version: u64,
    },
    /// Create the PodGroup of a gang scheduler, or change it.
    ApplyPodGroup {
        /// The gang scheduler.
        gang: Gang,
        /// What the PodGroup says.
        group: PodGroup,
        /// Precondition of a change; `None`: there is no PodGroup yet.
        uid: Option<String>,
    },
    /// Delete the PodGroup, if it is still the one that was observed.
    DeletePodGroup {
        /// The gang scheduler.
        gang: Gang,
        /// Precondition.
        uid: String,
    },
    /// Create the pod of a worker's attempt.
    CreateWorker {
        /// Index of the worker.
        index: u32,
        /// Its attempt.
        attempt: u32,
        /// Nodes that it must not be placed on.
        avoid: Vec<String>,
        /// Nodes that do not answer: it is placed on others if they have room.
        lost: Vec<String>,
        /// The record whose settings of the operator the pod is built with: that of the job's other pods. `None`: the settings of
        /// today.
        built_like: Option<BuiltFrom>,
    },
    /// Give a pod its place, if it is still the pod that was observed.
    IssueMembership {
        /// Name of the pod.
        pod: String,
        /// Precondition.
        resource_version: String,
        /// Its place.
        membership: Membership,
        /// The generations before of which it was a member and that may still train.
        earlier: Vec<Earlier>,
    },
    /// Say by a pod that its group in a queue gets no new pods, if it is still the pod that was observed.
    EndGroup {
        /// Name of the pod.
        pod: String,
        /// Precondition.
        resource_version: String,
    },
    /// Say by a pod that it draws no others into its topology domain, if it is still the pod that was observed.
    LeaveDomain {
        /// Name of the pod.
        pod: String,
        /// Precondition.
        resource_version: String,
    },
    /// Delete a pod, if it is still the pod that was observed.
    DeletePod {
        /// Name of the pod.
        pod: String,
        /// Precondition.
        uid: String,
        /// Precondition, if what the pod looked like decides that it goes: it may have completed since then.
        resource_version: Option<String>,
        /// Why.
        reason: DeleteReason,
    },
    /// Delete the job, whose time after its end is over, if it is still the job that was observed.
    DeleteJob {
        /// Precondition.
        uid: String,
        /// Precondition: nobody has edited it since.
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
    /// It was built from a spec that was edited since then, while the job was suspended.
    Outdated,
    /// Fewer workers are wanted.
    ScaledDown,
    /// It has ended for good; another attempt takes its place.
    Replaced,
    /// Its node did it drift; another attempt takes its place elsewhere.
    BadNode,
    /// Its node does not answer; another attempt takes its place.
    NodeLost,
    /// Its agent does not answer, although others do; another attempt takes its place.
    AgentSilent,
    /// Two pods of one worker: the later attempt stays.
    Surplus,
}

/// Why the plan is what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlanReason {
    /// The job is not accepted, and has no workers that could train, or none that this version understands.
    NotAccepted,
    /// A child's name is taken by somebody else's object.
    NameTaken,
    /// The gang scheduler of the job is not installed.
    GangSchedulerMissing,
    /// The job is suspended: it has no pods, or they are about to go.
    Suspended,
    /// The job is resumed, and waits for those that still leave.
    Resuming,
    /// Pods are being made.
    CreatingWorkers,
    /// Not all workers are ready yet.
    WaitingForWorkers,
    /// The next generation's number is persisted before any pod hears of it.
    RaisingGeneration,
    /// Members are being told their places.
    IssuingMembership,
    /// All members train.
    Training,
    /// A member has completed, and the others are about to.
    Finishing,
    /// A member is gone; the others come back to the lobby.
    Recovering,
    /// All members have ended with success.
    Succeeded,
    /// The job was given up.
    Failed,
    /// The job is being deleted; Kubernetes removes what it owns.
    Deleting,
}

/// A Kubernetes event about the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Normal or Warning.
    pub kind: EventType,
    /// `CamelCase`.
    pub reason: String,
    /// A sentence.
    pub message: String,
}

/// Type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    /// As it should be.
    Normal,
    /// Somebody should look.
    Warning,
}
