//! A job that can be run.

use std::time::Duration;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use roundhouse_api::{
    Checkpoint, CleanPodPolicy, FailureRule, NetworkPolicyMode, Scheduling, SuccessPolicy,
    TopologyMode,
};
use roundhouse_contract::ExpectedDevice;

use crate::generation::copies;
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
    pub generation: i64,
    /// Whether it has a deletion timestamp.
    pub deleting: bool,
    /// Its finalizers, which keep a deleted job in the API server.
    pub finalizers: Vec<String>,
    /// Whether it must have no pods for now.
    pub suspend: bool,
    /// Number of workers wanted now.
    pub replicas: u32,
    /// Fewest workers that train; with fewer, training pauses.
    pub min_replicas: u32,
    /// Upper limit for the number of workers.
    pub max_replicas: u32,
    /// Additional workers that wait in the lobby to replace a lost member.
    pub spares: u32,
    /// How long new workers wait for others, so that they join together.
    pub join_window: Duration,
    /// Number of processes of each pod, 1 to 64.
    pub procs_per_worker: u32,
    /// Number of pods of each replica, 1 to 64. The counts of workers are of replicas, and
    /// `spares` are pods.
    pub pods_per_replica: u32,
    /// Device of the processes; `None` if the template does not determine it.
    pub expected_device: Option<ExpectedDevice>,
    /// Time between SIGTERM and SIGKILL of the workers' pods.
    pub grace: Duration,
    pub program: Program,
    /// Where and when the state is saved, if at all.
    pub checkpoint: Option<Checkpoint>,
    /// Gang scheduler, queue, priority and topology of the workers' pods.
    pub scheduling: Scheduling,
    /// Template of the workers' pods; it has a container named `trainer`.
    pub template: PodTemplateSpec,
    /// Fingerprint of the fields from which pods are built and that may be edited while
    /// the job is suspended.
    pub built_from: String,
    /// Most incidents in a row; one more fails the job.
    pub backoff_limit: u32,
    /// Most incidents in total; one more fails the job.
    pub max_incidents: Option<u32>,
    /// Most replacements in a row; `None` means a limit by the number of pods.
    pub max_replacements: Option<u32>,
    /// Rules that choose the action for a failure.
    pub rules: Vec<FailureRule>,
    /// How long the job avoids a bad node.
    pub avoid_node: Duration,
    /// Time in which enough workers must be ready for the first time; `None` means no limit.
    pub start_deadline: Option<Duration>,
    /// Seconds without progress after which a process counts as hung; `None` if the
    /// agent learns the time.
    pub stall_timeout_seconds: Option<u32>,
    /// Longest total time in which the job is active.
    pub active_deadline: Option<Duration>,
    /// How long the job is kept after its end; `None` means until a client deletes it.
    pub ttl_after_finished: Option<Duration>,
    /// Which pods the operator deletes when the job has ended.
    pub clean_pod_policy: CleanPodPolicy,
    /// Which members must complete for the job to succeed.
    pub success_policy: SuccessPolicy,
    /// Whether the job gets a NetworkPolicy.
    pub network_policy: NetworkPolicyMode,
}

/// Default limit of replacements per pod without a new step, and the least total limit.
const REPLACEMENTS_PER_POD: u32 = 10;
const FEWEST_REPLACEMENTS: u32 = 100;

impl ValidatedJob {
    /// Most replacements without a new step between them; one more fails the job.
    #[must_use]
    pub fn most_replacements(&self) -> u32 {
        let usual = self.num_pods().saturating_mul(REPLACEMENTS_PER_POD);
        self.max_replacements
            .unwrap_or_else(|| usual.max(FEWEST_REPLACEMENTS))
    }

    /// Number of wanted pods: workers and spares.
    #[must_use]
    pub const fn num_pods(&self) -> u32 {
        let workers = self.replicas.saturating_mul(self.pods_per_replica);
        workers.saturating_add(self.spares)
    }

    /// Number of processes that together hold one copy of the state if they share the model.
    #[must_use]
    pub const fn procs_per_replica(&self) -> u32 {
        self.procs_per_worker.saturating_mul(self.pods_per_replica)
    }

    /// Whether a replica has several pods.
    #[must_use]
    pub const fn has_large_replicas(&self) -> bool {
        self.pods_per_replica > 1
    }

    /// How strictly the pods of each replica must share a topology domain; `None` if the job has no
    /// topology, or a replica has one pod.
    #[must_use]
    pub fn topology_of_replicas(&self) -> Option<TopologyMode> {
        let has = self.has_large_replicas() && self.scheduling.topology_key.is_some();
        has.then_some(self.scheduling.topology_mode)
    }

    /// Whether a spare holds second copies of the state of a worker of one pod.
    #[must_use]
    pub fn has_copy_pairs(&self) -> bool {
        copies::have_peers(self) && !self.has_large_replicas()
    }

    /// The job as the policies for workers see it: each replica is one worker with all of its
    /// processes, and there are no spares.
    #[must_use]
    pub fn with_replicas_as_workers(&self) -> Self {
        Self {
            procs_per_worker: self.procs_per_replica(),
            spares: 0,
            ..self.clone()
        }
    }
}
