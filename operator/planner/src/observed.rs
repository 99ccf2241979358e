//! What the operator sees of one job, as plain values.

use std::time::Duration;

use jiff::Timestamp;
use roundhouse_api::TrainingJobStatus;
use roundhouse_contract::earlier::Earlier;
use roundhouse_contract::{
    BuiltFrom, Incarnation, Membership, ProcessEnd, ProcessRestarts, Progress, TerminationMessage,
};

use crate::group::{GroupWrites, ObservedGroup};

/// Everything of one job that a plan depends on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// The status as last written.
    pub status: TrainingJobStatus,
    /// The job's resourceVersion: precondition of its deletion.
    pub resource_version: String,
    /// The headless Service.
    pub service: Presence,
    /// The NetworkPolicy.
    pub network_policy: Presence,
    /// The PodGroup, if the job has a gang scheduler.
    pub group: ObservedGroup,
    /// What the operator remembers of its writes of the PodGroup.
    pub group_writes: GroupWrites,
    /// The pods that bear the job's UID in their label, ours or not, in any order.
    pub pods: Vec<Pod>,
    /// Names that the job needs and that turned out to be somebody else's, as `Kind name`.
    pub taken: Vec<String>,
    /// What rank 0 last told of its progress, if it could be asked.
    pub progress: Option<ProgressSample>,
    /// The newest generation that has formed, as far as its rank 0 has told; `None`: nothing was told.
    pub formed: Option<u64>,
    /// How often the status shows progress that is not urgent, with as many jobs as train. `None`: every 10 s.
    pub progress_interval: Option<Duration>,
    /// How long the operator waits for a worker whose node has stopped answering before it replaces the worker. `None`: 60 s.
    pub lost_node_grace: Option<Duration>,
    /// Whether the API server has confirmed that the pods are as they are shown here. Without that they may be as they
    /// were before an outage. Needed only when a plan asks for it ([`crate::Plan::needs_fresh`]).
    pub fresh: bool,
    /// The clock differs from that of the API server, so nothing is over because of its time. Known only when a plan asks for it
    /// ([`crate::Plan::needs_fresh`]).
    pub clock_off: bool,
    /// Random text, drawn for each plan. A generation that is raised keeps that of its plan, in the status: whoever issues the
    /// rest of it, also after a crash, issues the same.
    pub nonce: String,
    /// Since when this operator sees the pods of all jobs and leads. `None`: for longer than there is this job.
    pub watched_since: Option<Timestamp>,
}

/// An object of a given name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Presence {
    /// There is none.
    #[default]
    Missing,
    /// There is none, although it was made: somebody deleted it.
    Deleted {
        /// When it is to be made anew.
        repair: Repair,
    },
    /// It is controlled by this job.
    Ours,
    /// It is controlled by this job, and is not as it was made: somebody edited it, or an older operator made it.
    Drifted {
        /// Its resourceVersion: precondition of its repair.
        version: u64,
        /// When it is to be repaired.
        repair: Repair,
    },
    /// Somebody else's: it is never touched.
    Foreign,
}

/// When an object that is not as it was made is to be repaired. Repaired at once each time, it would be written without end if a
/// controller or a webhook undoes that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Repair {
    /// At once: it was not repaired lately.
    #[default]
    Now,
    /// At once: somebody has undone the last repair, and the pause after that is over.
    Again,
    /// After this time: somebody has undone the last repair.
    Later(Duration),
}

/// Progress and when it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgressSample {
    /// What was told.
    pub progress: Progress,
    /// When.
    pub at: Timestamp,
}

/// `status.phase` of a pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodPhase {
    /// Not all containers have started.
    #[default]
    Pending,
    /// At least one container runs or restarts.
    Running,
    /// All containers exited 0.
    Succeeded,
    /// Ended for good (evicted, refused by the node, lost).
    Failed,
}

/// A worker's pod.
#[allow(
    clippy::struct_excessive_bools,
    reason = "facts that Kubernetes tells one by one"
)]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pod {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Its resourceVersion: precondition of a patch.
    pub resource_version: String,
    /// Whether the job's object is its controller.
    pub ours: bool,
    /// Index of the worker; `None` if the label is gone or unreadable.
    pub index: Option<u32>,
    /// Attempt of the worker.
    pub attempt: u32,
    /// Whether it has a deletion timestamp.
    pub deleting: bool,
    /// When its grace ends, if it has a deletion timestamp.
    pub gone_by: Option<Timestamp>,
    /// When it was created.
    pub created_at: Option<Timestamp>,
    /// Since when it has a node.
    pub scheduled_at: Option<Timestamp>,
    /// Its phase.
    pub phase: PodPhase,
    /// Whether its Ready condition is true.
    pub ready: bool,
    /// Since when its Ready condition is what it is.
    pub ready_at: Option<Timestamp>,
    /// Whether Kubernetes says that somebody else ended it: eviction, preemption, a lost node.
    pub disrupted: bool,
    /// Types of its conditions that are true, without those that every pod has.
    pub conditions: Vec<String>,
    /// Whether Kubernetes has lost touch with its node: what it last told of its containers is old.
    pub unreachable: bool,
    /// Whether its node says by itself that it is not ready, as while its runtime or network restarts: its kubelet lives.
    pub node_answers: bool,
    /// Whether it is unreachable because its agent does not answer, although its node does and other agents answer.
    pub agent_silent: bool,
    /// Whether its node is cordoned.
    pub cordoned: bool,
    /// Its address.
    pub ip: Option<String>,
    /// Its node.
    pub node: Option<String>,
    /// Value of the job's `scheduling.topologyKey` on its node; `None`: the job has none, or it is not known.
    pub domain: Option<String>,
    /// Its scheduling gates: until others have removed them, the scheduler does not look at it.
    pub gates: Vec<String>,
    /// Whether it says that its group in a queue gets no new pods.
    pub ends_group: bool,
    /// Whether it says that it draws no others into its topology domain.
    pub left_domain: bool,
    /// Why the scheduler has not placed it, in the scheduler's words.
    pub unschedulable: Option<String>,
    /// Reason and message of a Failed pod (`Evicted`, `OutOfcpu`, ...).
    pub failed: Option<Waiting>,
    /// Whether a container beside the trainer runs.
    pub sidecar_runs: bool,
    /// The trainer container, once the kubelet has told of it.
    pub container: Container,
    /// The init container that the trainer waits for, once one has started.
    pub initializing: Option<Box<InitContainer>>,
    /// The membership document it was given.
    pub membership: Option<Membership>,
    /// The generations before that one of which its container was a member and that may still train.
    pub earlier: Vec<Earlier>,
    /// Protocol of a document that a newer operator gave it, and that this version does not understand.
    pub newer_protocol: Option<u32>,
    /// What it was built from; `None`: an operator made it that did not say.
    pub built_from: Option<BuiltFrom>,
    /// What its agent told of its processes while it was not Ready. `None`: nothing; it is Ready, has one process,
    /// or could not be asked.
    pub processes: Option<Processes>,
}

/// Processes of a worker whose container lives.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Processes {
    /// Whether one of them is not prepared: the worker cannot take part in a generation yet.
    pub are_preparing: bool,
    /// How the one ended that the agent last started anew.
    pub end: Option<Termination>,
}

impl Processes {
    /// As the agent of a container told it that was restarted so often.
    #[must_use]
    pub fn of(told: ProcessRestarts, container_restarts: u32) -> Self {
        let ProcessRestarts {
            total: _,
            preparing,
            last,
        } = told;
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
            end,
        }
    }
}

/// State of the trainer container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Container {
    /// How often it was restarted.
    pub restarts: u32,
    /// Why it, or one that must start before it, waits (`ImagePullBackOff`, `CrashLoopBackOff`,
    /// `CreateContainerConfigError`, ...).
    pub waiting: Option<Waiting>,
    /// How it ended: its current termination, else the last one.
    pub termination: Option<Termination>,
}

/// An init container, or a sidecar that starts before the trainer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InitContainer {
    /// Its name.
    pub name: String,
    /// How often it was restarted.
    pub restarts: u32,
    /// How it failed last; `None`: it has not failed.
    pub failure: Option<Termination>,
}

/// A reason and a message, as Kubernetes gives them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// One word.
    pub reason: String,
    /// A sentence, perhaps empty.
    pub message: String,
}

/// How a container ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Termination {
    /// Restarts of the container that ended: equal to the pod's own while it was not restarted.
    pub restarts: u32,
    /// Exit code; 128 + n for signal n.
    pub exit_code: i32,
    /// Kubernetes' reason: `Completed`, `Error`, `OOMKilled`, ...
    pub reason: String,
    /// Our termination message, if the agent left one. Few pods have one, and it is large.
    pub message: Option<Box<TerminationMessage>>,
    /// When.
    pub finished_at: Option<Timestamp>,
}

impl Pod {
    /// Who it is now.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        Incarnation {
            pod_uid: self.uid.clone(),
            restarts: self.container.restarts,
        }
    }
}
