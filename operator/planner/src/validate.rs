//! Parse, don't re-check: after [`validate`] only a [`ValidatedJob`] travels.

use std::time::Duration;

use k8s_openapi::api::core::v1::{PodSpec, PodTemplateSpec};
use roundhouse_api::{CleanPodPolicy, NetworkPolicyMode, TrainingJob, TrainingJobSpec, Workers};
use roundhouse_contract::labels::TRAINER_CONTAINER;
use roundhouse_contract::names;

use crate::program::{self, Program};

/// Volume names that start so are ours.
pub const RESERVED_VOLUME_PREFIX: &str = "roundhouse-";
/// Extended resources that are GPUs.
const GPU_RESOURCES: [&str; 2] = ["nvidia.com/gpu", "amd.com/gpu"];
/// Most processes of one worker.
const MAX_PROCS: u32 = 64;

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
    /// Number of workers wanted now.
    pub replicas: u32,
    /// Fewest workers that train; with fewer, training pauses.
    pub min_replicas: u32,
    /// Most workers that are ever wanted.
    pub max_replicas: u32,
    /// How long newcomers wait for others, so that they join together.
    pub join_window: Duration,
    /// Processes of each worker.
    pub procs_per_worker: u32,
    /// What they run.
    pub program: Program,
    /// Their pods; has a container named `trainer`.
    pub template: PodTemplateSpec,
    /// Incidents in a row until the job fails.
    pub backoff_limit: u32,
    /// Time until all workers must be ready for the first time.
    pub start_deadline: Duration,
    /// Seconds without progress until a process counts as hung; `None`: the agent learns them.
    pub stall_timeout_seconds: Option<u32>,
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

pub(crate) fn invalid<T>(
    field: impl Into<String>,
    message: impl Into<String>,
) -> Result<T, InvalidSpec> {
    Err(InvalidSpec {
        field: field.into(),
        message: message.into(),
    })
}

/// Turns the raw object into a job that can be run.
///
/// # Errors
/// The first thing in the spec that cannot be run.
pub fn validate(job: &TrainingJob) -> Result<ValidatedJob, InvalidSpec> {
    let TrainingJob {
        metadata,
        spec,
        status: _,
    } = job;
    let TrainingJobSpec {
        managed_by: _,
        workers:
            Workers {
                replicas,
                min_replicas,
                max_replicas,
                procs_per_worker,
                template,
            },
        trainer,
        elastic,
        failure_policy,
        start_deadline_seconds,
        stall_timeout_seconds,
        clean_pod_policy,
        network_policy,
    } = spec;
    let name = metadata.name.clone().unwrap_or_default();
    if name.is_empty() || name.len() > names::MAX_JOB_NAME_LENGTH || name.contains('.') {
        let longest = names::MAX_JOB_NAME_LENGTH;
        return invalid(
            "metadata.name",
            format!("use 1 to {longest} characters without dots"),
        );
    }
    if *replicas == 0 {
        return invalid("spec.workers.replicas", "must be at least 1");
    }
    if min_replicas.is_some_and(|min| min == 0 || min > *replicas) {
        return invalid(
            "spec.workers.minReplicas",
            "must be between 1 and spec.workers.replicas",
        );
    }
    if max_replicas.is_some_and(|max| max < *replicas) {
        return invalid(
            "spec.workers.maxReplicas",
            "must not be below spec.workers.replicas",
        );
    }
    let mut template = template.clone().unwrap_or_default();
    refuse_our_fields(template.spec.get_or_insert_default())?;
    let program = program::of(trainer.as_ref(), elastic, &mut template)?;
    let procs_per_worker = procs_per_worker.map_or_else(|| gpus(&template), Ok)?;
    if !(1..=MAX_PROCS).contains(&procs_per_worker) {
        let message = format!("must be between 1 and {MAX_PROCS}");
        return invalid("spec.workers.procsPerWorker", message);
    }
    Ok(ValidatedJob {
        key: JobKey {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name,
            uid: metadata.uid.clone().unwrap_or_default(),
        },
        generation: metadata.generation.unwrap_or_default(),
        deleting: metadata.deletion_timestamp.is_some(),
        replicas: *replicas,
        min_replicas: min_replicas.unwrap_or(*replicas),
        max_replicas: max_replicas.unwrap_or(*replicas).max(*replicas),
        join_window: Duration::from_secs(u64::from(elastic.join_window_seconds)),
        procs_per_worker,
        program,
        template,
        backoff_limit: failure_policy.backoff_limit,
        start_deadline: Duration::from_secs(u64::from(*start_deadline_seconds)),
        stall_timeout_seconds: *stall_timeout_seconds,
        clean_pod_policy: *clean_pod_policy,
        network_policy: *network_policy,
    })
}

/// Refuses what the operator decides itself.
fn refuse_our_fields(spec: &PodSpec) -> Result<(), InvalidSpec> {
    let field = |name: &str| format!("spec.workers.template.spec.{name}");
    let refused = [
        ("hostNetwork", spec.host_network == Some(true)),
        ("hostPID", spec.host_pid == Some(true)),
        ("hostIPC", spec.host_ipc == Some(true)),
        ("nodeName", spec.node_name.is_some()),
        ("hostname", spec.hostname.is_some()),
        ("subdomain", spec.subdomain.is_some()),
    ];
    if let Some((name, _)) = refused.into_iter().find(|(_, is_set)| *is_set) {
        return invalid(
            field(name),
            "leave it out: the operator decides it for every worker",
        );
    }
    if spec
        .restart_policy
        .as_deref()
        .is_some_and(|policy| policy != "OnFailure")
    {
        return invalid(field("restartPolicy"), "leave it out or set OnFailure");
    }
    for (at, volume) in spec.volumes.iter().flatten().enumerate() {
        if volume.name.starts_with(RESERVED_VOLUME_PREFIX) {
            let message = format!("take a name that does not start with {RESERVED_VOLUME_PREFIX}");
            return invalid(field(&format!("volumes[{at}].name")), message);
        }
    }
    Ok(())
}

/// GPUs in the trainer container's limits; one process if there are none.
fn gpus(template: &PodTemplateSpec) -> Result<u32, InvalidSpec> {
    let containers = template.spec.iter().flat_map(|spec| &spec.containers);
    let limits = containers
        .filter(|container| container.name == TRAINER_CONTAINER)
        .filter_map(|container| container.resources.as_ref()?.limits.as_ref());
    for limits in limits {
        for resource in GPU_RESOURCES {
            let Some(quantity) = limits.get(resource) else {
                continue;
            };
            return quantity.0.parse().map_or_else(
                |_| invalid(format!("limits[{resource}]"), "must be a whole number"),
                |count: u32| Ok(count.max(1)),
            );
        }
    }
    Ok(1)
}
