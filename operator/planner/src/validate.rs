//! Parse, don't re-check: after [`validate`] only a [`ValidatedJob`] travels.

use std::time::Duration;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use roundhouse_api::{CleanPodPolicy, NetworkPolicyMode, TrainingJob};
use roundhouse_contract::TrainerConfig;

/// Which job.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JobKey {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID; a job of the same name later has another.
    pub uid: String,
}

/// A job that can be run.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidatedJob {
    /// Which.
    pub key: JobKey,
    /// `metadata.generation`.
    pub generation: i64,
    /// Whether it has a deletion timestamp.
    pub deleting: bool,
    /// Number of workers.
    pub replicas: u32,
    /// Processes of each worker.
    pub procs_per_worker: u32,
    /// What they train.
    pub trainer: TrainerConfig,
    /// Their pods; has a container named `trainer`.
    pub template: PodTemplateSpec,
    /// Incidents in a row until the job fails.
    pub backoff_limit: u32,
    /// Time until all workers must be ready for the first time.
    pub start_deadline: Duration,
    /// Which pods go when the job has ended.
    pub clean_pod_policy: CleanPodPolicy,
    /// Whether a NetworkPolicy is made.
    pub network_policy: NetworkPolicyMode,
}

/// A spec that cannot be run: one sentence that says what to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct InvalidSpec {
    /// Path of the field, such as `spec.workers.replicas`.
    pub field: String,
    /// What to change.
    pub message: String,
}

/// Turns the raw object into a job that can be run.
///
/// # Errors
/// The first thing in the spec that cannot be run.
pub fn validate(_job: &TrainingJob) -> Result<ValidatedJob, InvalidSpec> {
    Err(InvalidSpec {
        field: String::new(),
        message: String::new(),
    })
}
