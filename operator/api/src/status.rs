//! `status`: the observed state. Only the operator writes it, with one patch per reconcile.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use roundhouse_contract::{BestCheckpoint, Progress};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::blocked::{BlockReason, BlockedWrite};
pub use self::conditions::ConditionType;

mod blocked;
mod conditions;

/// The observed state of a job, and the operator's decisions.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrainingJobStatus {
    /// Generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What the job does or waits for, in one word: the reason of the condition that matters most
    /// now. It is for people; the operator decides nothing by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub state: Option<String>,
    /// Conditions `Accepted`, `Running`, `Suspended`, `Succeeded`, `Failed`, in no particular
    /// order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Writes that the job needs and that do not happen, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub blocked: Vec<BlockedWrite>,
    /// The scheduler's words about a worker for which no node has room, as they were before only
    /// their numbers changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32_768))]
    pub unschedulable: Option<String>,
    /// Whether the job has not trained yet, or not since it was resumed, and a worker waits for a
    /// scheduling gate to be removed, as in a queue. The deadlines do not run meanwhile.
    #[serde(default, skip_serializing_if = "is_false")]
    pub queued: bool,
    /// When the operator accepted the job, when it was last resumed, or when its last scheduling
    /// gate was removed. Absent while the job is suspended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// Seconds that the job was active before `startTime`; suspensions do not count.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub active_seconds: u64,
    /// The newest generation when the job was last resumed: a greater number shows that the
    /// job has trained since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumed_after_generation: Option<u64>,
    /// When the job succeeded or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    /// The newest generation that was issued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub membership: Option<MembershipStatus>,
    /// Number of workers in each state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<WorkersStatus>,
    /// Pods of the job without spares, for the scale subresource.
    #[serde(default)]
    pub replicas: u32,
    /// Label selector of the pods, for the scale subresource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub selector: Option<String>,
    /// Counted failures of the job.
    #[serde(default)]
    pub incidents: Incidents,
    /// Pods that replaced others.
    #[serde(default, skip_serializing_if = "is_default")]
    pub replacements: Replacements,
    /// The newest failure of a worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<LastFailure>,
    /// Progress of training; written at most every ten seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<JobProgress>,
    /// The newest checkpoint of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointStatus>,
    /// Nodes on which no new pod of this job is placed for some time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub avoid_nodes: Vec<AvoidedNode>,
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature serde wants"
)]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature serde wants"
)]
const fn is_false(value: &bool) -> bool {
    !*value
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature serde wants"
)]
const fn is_none(number: &u32) -> bool {
    *number == 0
}

fn is_default(replacements: &Replacements) -> bool {
    *replacements == Replacements::default()
}

/// The newest checkpoint, as rank 0 reports it.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CheckpointStatus {
    /// Committed steps that it contains; absent while there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// When the checkpoint was complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
    /// Committed steps in the newest local copy of the worker with rank 0, if it is newer than the
    /// checkpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_step: Option<u64>,
    /// Committed steps in the newest copy that a spare is known to hold for the worker with rank 0
    /// (`checkpoint.local.peerCopies`), if it is newer than the checkpoint. Absent for replicas of
    /// several pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peer_step: Option<u64>,
    /// Name of the spare that holds the copy of `peerStep`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub peer_pod: Option<String>,
    /// The best checkpoint, if `checkpoint.best` is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<BestCheckpoint>,
    /// Why the last local copy was not written, or not stored in another pod; absent if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1_024))]
    pub local_error: Option<String>,
    /// Why the last attempt failed, or waits for the volume; absent if there is no error.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1_024))]
    pub error: Option<String>,
}

/// A node that the job avoids.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AvoidedNode {
    /// Name of the node.
    #[schemars(length(max = 253))]
    pub node: String,
    /// Cause, in one word.
    #[schemars(length(max = 128))]
    pub reason: String,
    /// When the job uses the node again.
    pub until: Time,
}

/// A generation: a set of workers that train together.
#[derive(JsonSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MembershipStatus {
    /// Number of the generation; it only grows.
    pub generation: u64,
    /// Number of ranks: workers times processes per worker.
    pub world_size: u32,
    /// Number of workers in the generation.
    pub nodes: u32,
    /// Fingerprint of its members. A generation is only issued to the members for
    /// which it was raised.
    #[schemars(length(max = 64))]
    pub members: String,
    /// Fingerprint of its members in the order of their node ranks. A generation is only issued in
    /// this order, so that no two operators give the same rank to different workers.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub order: String,
    /// Random value of this generation. Its members use it to refuse processes of other jobs and
    /// generations, and agents use it to refuse clients that may not read the job.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub nonce: String,
    /// Node ranks of its members that have completed, such as `0,2-5`. They count even if
    /// their pods are gone.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 65_536))]
    pub completed: String,
    /// The newest generation that is known to have formed: its members have trained, and members of
    /// older ones train no more.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub formed: u64,
}

impl MembershipStatus {
    /// Processes per worker; `None` before the first generation.
    #[must_use]
    pub const fn procs_per_worker(&self) -> Option<u32> {
        self.world_size.checked_div(self.nodes)
    }
}

/// Number of workers in each state.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkersStatus {
    /// Number of wanted workers.
    pub wanted: u32,
    /// Workers in the lobby or training, without spares.
    pub ready: u32,
    /// Members of the newest generation that are alive.
    pub active: u32,
    /// Spares in the lobby, which replace lost members.
    #[serde(default)]
    pub spares: u32,
    /// Pods that may hold resources: all that have not ended, including terminating pods. A pod
    /// that terminates on a node that does not answer does not count.
    #[serde(default)]
    pub pods: u32,
    /// Name of a pod whose containers fail repeatedly before it trains, while the
    /// others train without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub left_out: Option<String>,
    /// `ready/wanted`, for the column of `kubectl get`.
    #[schemars(length(max = 32))]
    pub summary: String,
}

/// Failures so far, each counted once.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Incidents {
    /// Number of all incidents.
    pub total: u32,
    /// Incidents since a step was last committed.
    pub since_progress: u32,
    /// Highest committed step at any incident.
    pub last_step: u64,
    /// Generation of the newest incident: an incident is counted once per generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_generation: Option<u64>,
}

/// Pods that replaced others, for any cause.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Replacements {
    /// Pods of workers and spares that existed or were created when the status was written.
    #[serde(skip_serializing_if = "is_none")]
    pub pods: u32,
    /// Number of all replacements.
    #[serde(skip_serializing_if = "is_none")]
    pub total: u32,
    /// Replacements since a step was last committed.
    #[serde(skip_serializing_if = "is_none")]
    pub since_progress: u32,
    /// Highest committed step at any replacement.
    #[serde(skip_serializing_if = "is_zero")]
    pub last_step: u64,
    /// The newest generation at the newest replacement.
    #[serde(skip_serializing_if = "is_zero")]
    pub last_generation: u64,
}

/// The newest failure: its worker, node, time and cause.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastFailure {
    /// When the failure happened, or, if that is unknown, when the operator observed it.
    pub time: Time,
    /// Pod of the worker.
    #[schemars(length(max = 253))]
    pub worker: String,
    /// Rank of the process, if it had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Node the pod ran on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub node: Option<String>,
    /// Cause, in one word.
    #[schemars(length(max = 128))]
    pub reason: String,
    /// Exit code of the container.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Last committed step that the process reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// Cause, in a sentence.
    #[schemars(length(max = 4_096))]
    pub message: String,
}

/// The progress of training.
#[derive(JsonSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobProgress {
    /// The report of rank 0.
    #[serde(flatten)]
    pub progress: Progress,
    /// Completed part of all steps, such as `42%`.
    #[schemars(length(max = 8))]
    pub percent: String,
    /// When the operator read the report.
    pub updated_at: Time,
}
