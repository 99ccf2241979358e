//! A job that can be run.

use std::time::Duration;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use roundhouse_api::{
    Checkpoint, CleanPodPolicy, FailureRule, NetworkPolicyMode, Scheduling, SuccessPolicy,
};
use roundhouse_contract::ExpectedDevice;

use crate::program::Program;

/// The parts of a job's metadata that its objects refer to: labels, owner references, names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JobIdentity {
    /// `metadata.namespace` of the job.
    pub namespace: String,
    /// `metadata.name` of the job.
    pub name: String,
    /// `metadata.uid` of the job. A later job of the same name has another UID.
    pub uid: String,
}

/// A job that can be run.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidatedJob {
    /// Namespace, name and UID of the job.
    pub identity: JobIdentity,
    /// `metadata.generation`.
    pub generation: i64,
    /// Whether it has a deletion timestamp.
    pub deleting: bool,
    /// Its finalizers: while it has some, it stays although it is deleted.
    pub finalizers: Vec<String>,
    /// Whether it shall have no pods for now.
    pub suspend: bool,
    /// Number of workers wanted now.
    pub replicas: u32,
    /// Fewest workers that train; with fewer, training pauses.
    pub min_replicas: u32,
    /// Most workers that are ever wanted.
    pub max_replicas: u32,
    /// Workers beyond those that wait in the lobby to take the place of a member that is lost.
    pub spares: u32,
    /// How long newcomers wait for others, so that they join together.
    pub join_window: Duration,
    /// Processes of each worker.
    pub procs_per_worker: u32,
    /// What they compute on; `None`: the template does not tell.
    pub expected_device: Option<ExpectedDevice>,
    /// Time between SIGTERM and SIGKILL of their pods.
    pub grace: Duration,
    /// What they run.
    pub program: Program,
    /// Where their state is kept, if anywhere.
    pub checkpoint: Option<Checkpoint>,
    /// How they are placed.
    pub scheduling: Scheduling,
    /// Their pods; has a container named `trainer`.
    pub template: PodTemplateSpec,
    /// Fingerprint of what of the spec is in their pods and may be edited while the job is suspended.
    pub built_from: String,
    /// Incidents in a row until the job fails.
    pub backoff_limit: u32,
    /// Incidents in all until the job fails.
    pub max_incidents: Option<u32>,
    /// Replacements in a row until the job fails; `None`: by the number of pods.
    pub max_replacements: Option<u32>,
    /// What to do about which failure.
    pub rules: Vec<FailureRule>,
    /// For how long a bad node is avoided.
    pub avoid_node: Duration,
    /// Time until enough workers must be ready for the first time; `None`: there is no limit.
    pub start_deadline: Option<Duration>,
    /// Seconds without progress until a process counts as hung; `None`: the agent learns them.
    pub stall_timeout_seconds: Option<u32>,
    /// Time that it may be active in all.
    pub active_deadline: Option<Duration>,
    /// For how long the job is kept after its end; `None`: until somebody deletes it.
    pub ttl_after_finished: Option<Duration>,
    /// Which pods go when the job has ended.
    pub clean_pod_policy: CleanPodPolicy,
    /// Whose completion makes the job succeed.
    pub success_policy: SuccessPolicy,
    /// Whether a NetworkPolicy is made.
    pub network_policy: NetworkPolicyMode,
}

/// Default limit of replacements without a new step, for each pod, and the least limit in all.
const REPLACEMENTS_PER_POD: u32 = 10;
const FEWEST_REPLACEMENTS: u32 = 100;

impl ValidatedJob {
    /// Most replacements without a new step between them.
    #[must_use]
    pub fn most_replacements(&self) -> u32 {
        let usual = self.num_pods().saturating_mul(REPLACEMENTS_PER_POD);
        self.max_replacements
            .unwrap_or_else(|| usual.max(FEWEST_REPLACEMENTS))
    }

    /// Pods that are wanted now: workers and spares.
    #[must_use]
    pub const fn num_pods(&self) -> u32 {
        self.replicas.saturating_add(self.spares)
    }
}
