//! The observed state of one job, as plain values.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use roundhouse_api::TrainingJobStatus;
use roundhouse_contract::earlier::Earlier;
use roundhouse_contract::{
    BuiltFrom, CopyPair, Incarnation, Membership, ProcessEnd, ProcessRestarts, Progress,
    ReplicaPlace, TerminationMessage,
};

use crate::group::{GroupWrites, ObservedGroup, OtherGroup};

/// Everything that a plan for one job depends on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// The status as last written.
    pub status: TrainingJobStatus,
    /// The job's resourceVersion, the precondition of its deletion.
    pub resource_version: String,
    pub service: Presence,
    pub network_policy: Presence,
    /// The PodGroup of the first gang, if the job has a gang scheduler.
    pub group: ObservedGroup,
    /// The operator's memory of its writes of that PodGroup.
    pub group_writes: GroupWrites,
    /// The PodGroups of the other gangs, by their numbers from 1. Those without an entry are
    /// missing.
    pub other_groups: BTreeMap<u32, OtherGroup>,
    /// The pods with the job's UID in their label, owned or not, in any order.
    pub pods: Vec<Pod>,
    /// Names that the job needs but that belong to other objects, as `Kind name`.
    pub taken: Vec<String>,
    /// The last progress that rank 0 reported, if the operator could poll it.
    pub progress: Option<ProgressSample>,
    /// The newest generation that has formed according to its rank 0; `None` if no
    /// rank 0 has reported.
    pub formed: Option<u64>,
    /// How often the status shows progress that is not urgent, given the number of running jobs.
    /// `None` means every 10 s.
    pub progress_interval: Option<Duration>,
    /// How long the operator waits for a worker whose node has stopped answering before it replaces
    /// the worker. `None` means 60 s.
    pub lost_node_grace: Option<Duration>,
    /// Whether the API server has confirmed this state of the pods. Otherwise it may date from
    /// before an outage. Set only when a plan asks for it ([`crate::Plan::needs_fresh`]).
    pub fresh: bool,
    /// Whether the operator's clock differs from the API server's, so that no deadline may be
    /// applied. Set only when a plan asks for it ([`crate::Plan::needs_fresh`]).
    pub clock_off: bool,
    /// Random text for each plan. A generation keeps the nonce of the plan that raised it, in the
    /// status, so an operator that issues the rest of it after a crash issues the same one.
    pub nonce: String,
    /// Since when this operator leads and sees the pods of all jobs. `None` if for longer
    /// than the job exists.
    pub watched_since: Option<Timestamp>,
}

/// The observed state of an object with a fixed name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Presence {
    #[default]
    Missing,
    /// The object is missing although it was created: another client deleted it.
    Deleted {
        /// When to create it again.
        repair: Repair,
    },
    /// The job is its controller.
    Ours,
    /// The job is its controller, but it differs from what this operator would create: another
    /// client edited it, or an older operator created it.
    Drifted {
        /// Its resourceVersion, the precondition of its repair.
        version: u64,
        repair: Repair,
    },
    /// Another object controls it, so the operator never changes it.
    Foreign,
}

/// When to repair an object that has drifted. Without pauses, a controller or a webhook that undoes
/// the repair would cause writes without end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Repair {
    /// At once, because it was not repaired recently.
    #[default]
    Now,
    /// At once, because the last repair was undone and the pause after it is over.
    Again,
    /// After this time, because the last repair was undone.
    Later(Duration),
}

/// A progress report and when it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgressSample {
    pub progress: Progress,
    pub at: Timestamp,
}

/// `status.phase` of a pod; a missing or unknown one counts as `Pending`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodPhase {
    /// Not all containers have started.
    #[default]
    Pending,
    /// At least one container runs or restarts.
    Running,
    /// All containers exited 0.
    Succeeded,
    /// The pod has ended and does not restart (evicted, refused by the node, lost).
    Failed,
}

#[allow(
    clippy::struct_excessive_bools,
    reason = "facts that Kubernetes reports separately"
)]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pod {
    pub name: String,
    pub uid: String,
    /// Its resourceVersion, the precondition of a patch.
    pub resource_version: String,
    /// Whether the job is its controller.
    pub ours: bool,
    /// Index of the worker; `None` if the label is gone or unreadable.
    pub index: Option<u32>,
    /// Number of earlier pods of this worker; 0 if neither label nor name says it.
    pub attempt: u32,
    /// Whether it has a deletion timestamp.
    pub deleting: bool,
    /// When its grace ends, if it has a deletion timestamp.
    pub gone_by: Option<Timestamp>,
    /// Its creation timestamp, by the API server's clock.
    pub created_at: Option<Timestamp>,
    /// Since when it has a node.
    pub scheduled_at: Option<Timestamp>,
    pub phase: PodPhase,
    /// Whether its Ready condition is true.
    pub ready: bool,
    /// When its Ready condition last changed.
    pub ready_at: Option<Timestamp>,
    /// Whether Kubernetes reports an external cause of its end: eviction, preemption, a lost node.
    pub disrupted: bool,
    /// Types of its true conditions, without those that every pod has.
    pub conditions: Vec<String>,
    /// Whether Kubernetes has lost contact with its node, so that the states of its
    /// containers may be outdated.
    pub unreachable: bool,
    /// Whether its node itself reports that it is not ready, for example while its runtime or
    /// network restarts. Its kubelet is alive then.
    pub node_answers: bool,
    /// Whether it counts as unreachable because its agent does not answer, although its node
    /// and other agents do.
    pub agent_silent: bool,
    /// Whether its node is cordoned, or an autoscaler is about to remove it.
    pub cordoned: bool,
    pub ip: Option<String>,
    pub node: Option<String>,
    /// Value of the job's `scheduling.topologyKey` on its node; `None` if the job has no key or
    /// the value is unknown.
    pub domain: Option<String>,
    /// Its scheduling gates; the scheduler ignores it until other controllers have removed them.
    pub gates: Vec<String>,
    /// Whether its annotation says that its group in a queue gets no new pods.
    pub ends_group: bool,
    /// Whether its label no longer attracts other pods to its topology domain.
    pub left_domain: bool,
    /// The replica that its label names, if pods are placed near those of their replica.
    pub replica_label: Option<u32>,
    /// The gang with which it was created; 0 for the first one of its job, and without a gang
    /// scheduler.
    pub gang: u32,
    /// Why the scheduler has not placed it, as the scheduler's own message.
    pub unschedulable: Option<String>,
    /// Reason and message of a failed pod (`Evicted`, `OutOfcpu`, ...).
    pub failed: Option<Waiting>,
    /// Whether a container beside the trainer runs.
    pub sidecar_runs: bool,
    /// The trainer container, once the kubelet has reported it.
    pub container: Container,
    /// The init container for which the trainer waits, once one has started.
    pub initializing: Option<Box<InitContainer>>,
    /// The membership in its annotation; `None` if this version cannot read it.
    pub membership: Option<Membership>,
    /// Earlier generations in which its container was a member and that may still train.
    pub earlier: Vec<Earlier>,
    /// The place in a replica of several pods in its annotation.
    pub replica: Option<ReplicaPlace>,
    /// In its annotation: the other pod with which it has copies of the state in pairs.
    pub copies: Option<CopyPair>,
    /// Protocol of its membership, if a newer operator wrote it and this version cannot read it.
    pub newer_protocol: Option<u32>,
    /// The record of what it was built from; `None` if the operator that created it wrote none.
    pub built_from: Option<BuiltFrom>,
    /// What its agent reported about its processes while it was not Ready. `None` if it is Ready,
    /// has one process, or did not answer.
    pub processes: Option<Processes>,
}

/// The processes of a worker whose container is alive.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Processes {
    /// Whether a process is not prepared, so that the worker cannot take part in a generation yet.
    pub are_preparing: bool,
    /// Whether all of them restarted and none has been in a generation since.
    pub are_without_state: bool,
    /// Whether all of them are ready to train, or train. If the pod is not Ready nevertheless, a
    /// probe of the kubelet failed.
    pub are_ready: bool,
    /// How the process ended that the agent restarted last.
    pub end: Option<Termination>,
    /// In a replica of several pods, the life whose processes in this pod have ended.
    pub ended_life: String,
}

impl Processes {
    /// Reads the report of the agent in a container with this number of restarts.
    #[must_use]
    pub fn of(report: ProcessRestarts, container_restarts: u32) -> Self {
        let ProcessRestarts {
            total: _,
            preparing,
            without_state,
            ended_life,
            has_lives: _,
            ready,
            last,
        } = report;
        let end = last.map(|end| {
            let ProcessEnd {
                local_rank: _,
                exit_code,
                message,
                ended_at_seconds,
            } = end;
            Termination {
                restarts: container_restarts,
                exit_code,
                reason: "Error".to_owned(),
                message: Some(Box::new(message)),
                finished_at: Timestamp::from_second(ended_at_seconds).ok(),
            }
        });
        Self {
            are_preparing: !preparing.is_empty(),
            are_without_state: without_state,
            are_ready: ready,
            end,
            ended_life,
        }
    }
}

/// State of the trainer container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Container {
    /// Its `restartCount`, as the kubelet reports it.
    pub restarts: u32,
    /// Reason and message while it, or a container that must start before it, waits:
    /// `ImagePullBackOff`, `CrashLoopBackOff`, `CreateContainerConfigError` or another one.
    pub waiting: Option<Waiting>,
    /// Since when it runs, by its node's clock; `None` if it does not.
    pub started_at: Option<Timestamp>,
    /// Its current termination, or else the last one.
    pub termination: Option<Termination>,
}

/// An init container, or a sidecar that starts before the trainer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InitContainer {
    pub name: String,
    /// Its `restartCount`, as the kubelet reports it.
    pub restarts: u32,
    /// Its last failure; `None` if it has not failed.
    pub failure: Option<Termination>,
}

/// A reason and a message, as in the Kubernetes API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    pub reason: String,
    /// A sentence, perhaps empty.
    pub message: String,
}

/// How a container ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Termination {
    /// Number of restarts before the container that ended. It equals the pod's current number if
    /// the container was not restarted since.
    pub restarts: u32,
    /// Exit code; 128 + n for signal n.
    pub exit_code: i32,
    /// Kubernetes' reason: `Completed`, `Error`, `OOMKilled`, ...
    pub reason: String,
    /// The agent's termination message, if it wrote one. Boxed because few pods have one
    /// and it is large.
    pub message: Option<Box<TerminationMessage>>,
    pub finished_at: Option<Timestamp>,
}

impl Pod {
    /// Whether its agent reports that its processes of this life have ended.
    #[must_use]
    pub fn has_ended_life(&self, life: &str) -> bool {
        let report = self.processes.as_ref();
        report.is_some_and(|report| report.ended_life == life)
    }

    /// Whether this is the incarnation that runs.
    #[must_use]
    pub fn is_incarnation(&self, other: &Incarnation) -> bool {
        other.restarts == self.container.restarts && other.pod_uid == self.uid
    }

    /// The incarnation that runs: the pod's UID and the restarts of its trainer container.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        Incarnation {
            pod_uid: self.uid.clone(),
            restarts: self.container.restarts,
        }
    }
}
