//! Validates the job once: later steps receive only a [`ValidatedJob`]. [`validate_with`] is the
//! step of a reconcile; it gives one even for a job that cannot run and is only managed.
//! [`validate`] is the same check for callers that need a job that can run.

use std::time::Duration;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use roundhouse_api::{
    FailurePolicy, MembershipStatus, TrainingJob, TrainingJobSpec, TrainingJobStatus, Workers,
    fields,
};
use roundhouse_contract::environment;
use roundhouse_contract::membership::fingerprint_of;

pub use self::job::{JobIdentity, ValidatedJob};
use self::template::{
    expected_device, gpus, refuse_claims_without_processes, refuse_our_annotations,
    refuse_our_fields, refuse_unused_devices,
};
use crate::built;
use crate::gpu;
pub use crate::invalid::InvalidSpec;
use crate::invalid::invalid;
use crate::observed::Pod;
use crate::program::{self, Program};

mod checks;
mod job;
mod local_copies;
mod placement;
mod replica_size;
mod template;

/// Time for the agent to write its termination message.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// Most processes of one pod.
const MAX_PROCS: u32 = 64;
/// Most pods of one replica.
const MAX_PODS: u32 = 64;

/// Time between SIGTERM and SIGKILL of a pod: the template's value, or else what the
/// program needs. Processes of a script have `leaveGraceSeconds`, and the agent a little
/// more for its termination message.
fn grace(template: &PodTemplateSpec, program: &Program) -> Duration {
    let theirs = template
        .spec
        .as_ref()
        .and_then(|spec| spec.termination_grace_period_seconds);
    let needed = program.script().map_or(
        Duration::from_secs(environment::grace::DEFAULT_SECONDS),
        |script| script.leave_grace + LAST_WORDS,
    );
    theirs.map_or(needed, |seconds| {
        let seconds = u64::try_from(seconds).unwrap_or(0);
        // A larger value would overflow later computations of time.
        Duration::from_secs(seconds.min(u32::MAX.into()))
    })
}

/// A job, and whether it can run.
#[derive(Clone, Debug, PartialEq)]
pub struct Validation {
    /// The job. If it cannot run, only the parts that manage its existing pods are valid.
    pub job: ValidatedJob,
    /// The first error in the spec, if the job cannot run.
    pub refusal: Option<InvalidSpec>,
}

/// Turns the raw object into a job that can run: like [`validate_with`], with the default names of
/// GPUs and without pods.
///
/// # Errors
/// Fails with the first error in the spec.
pub fn validate(job: &TrainingJob) -> Result<ValidatedJob, InvalidSpec> {
    let Validation { job, refusal } = validate_with(job, &gpu::Listed::default(), &[]);
    refusal.map_or(Ok(job), Err)
}

/// Turns the raw object into a job that can be managed, and says whether it can run. A worker
/// has a process for each of the listed GPUs. In a run that has pods, the number of processes is
/// that of the pods.
#[must_use]
pub fn validate_with(job: &TrainingJob, listed: &gpu::Listed, pods: &[Pod]) -> Validation {
    let TrainingJob {
        metadata,
        spec,
        status,
    } = job;
    let TrainingJobSpec {
        managed_by: _,
        suspend,
        workers:
            Workers {
                replicas,
                min_replicas,
                max_replicas,
                spares,
                procs_per_worker: _,
                pods_per_replica,
                sharded: _,
                template,
            },
        trainer: _,
        checkpoint,
        scheduling,
        elastic,
        failure_policy:
            FailurePolicy {
                backoff_limit,
                max_incidents,
                max_replacements,
                rules,
                avoid_node_seconds,
            },
        start_deadline_seconds,
        stall_timeout_seconds,
        active_deadline_seconds,
        ttl_seconds_after_finished,
        clean_pod_policy,
        success_policy,
        network_policy,
    } = spec;
    let name = metadata.name.clone().unwrap_or_default();
    let mut template = template.clone().unwrap_or_default();
    placement::complete(&mut template, scheduling);
    let built_from = fingerprint_of(fields::built_from(spec).as_bytes());
    let generation = metadata.generation.unwrap_or_default();
    let devices = built::devices(pods, &built_from, generation);
    let procs = devices.procs_per_worker;
    let procs = procs.filter(|procs| (1..=MAX_PROCS).contains(procs));
    let (runs, refusal) = match Runs::of(&name, spec, &mut template, (listed, procs)) {
        Ok(runs) => (runs, None),
        Err(refusal) => (Runs::as_before(spec, status.as_ref(), procs), Some(refusal)),
    };
    let Runs {
        program,
        procs_per_worker,
        num_gpus,
    } = runs;
    let job = ValidatedJob {
        identity: JobIdentity {
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name,
            uid: metadata.uid.clone().unwrap_or_default(),
        },
        generation,
        deleting: metadata.deletion_timestamp.is_some(),
        finalizers: metadata.finalizers.clone().unwrap_or_default(),
        suspend: *suspend,
        replicas: *replicas,
        min_replicas: min_replicas.unwrap_or(*replicas),
        max_replicas: max_replicas.unwrap_or(*replicas).max(*replicas),
        spares: *spares,
        join_window: Duration::from_secs(u64::from(elastic.join_window_seconds)),
        procs_per_worker,
        pods_per_replica: pods_per_replica.unwrap_or(1).clamp(1, MAX_PODS),
        expected_device: devices.expected_device.map_or_else(
            || expected_device(&template, num_gpus),
            |text| text.parse().ok(),
        ),
        grace: grace(&template, &program),
        program,
        checkpoint: checkpoint.clone(),
        scheduling: scheduling.clone(),
        template,
        built_from,
        backoff_limit: *backoff_limit,
        max_incidents: *max_incidents,
        max_replacements: *max_replacements,
        rules: rules.clone(),
        avoid_node: Duration::from_secs(u64::from(*avoid_node_seconds)),
        start_deadline: start_deadline_seconds
            .map(|seconds| Duration::from_secs(u64::from(seconds))),
        stall_timeout_seconds: *stall_timeout_seconds,
        active_deadline: active_deadline_seconds
            .map(|seconds| Duration::from_secs(u64::from(seconds))),
        ttl_after_finished: ttl_seconds_after_finished
            .map(|seconds| Duration::from_secs(u64::from(seconds))),
        clean_pod_policy: *clean_pod_policy,
        success_policy: *success_policy,
        network_policy: *network_policy,
    };
    Validation { job, refusal }
}

/// The program of the workers and their devices.
struct Runs {
    program: Program,
    procs_per_worker: u32,
    num_gpus: u32,
}

impl Runs {
    /// Reads the spec. Afterwards the template has a container named `trainer`. `running` is the
    /// number of processes of each existing worker.
    fn of(
        name: &str,
        spec: &TrainingJobSpec,
        template: &mut PodTemplateSpec,
        (listed, running): (&gpu::Listed, Option<u32>),
    ) -> Result<Self, InvalidSpec> {
        let workers = &spec.workers;
        let procs = workers.procs_per_worker.or(running);
        checks::name(name)?;
        checks::replicas(workers.replicas, workers.min_replicas, workers.max_replicas)?;
        checks::spares(workers.spares)?;
        if let Some(checkpoint) = &spec.checkpoint {
            checks::checkpoint(checkpoint)?;
        }
        checks::rules(&spec.failure_policy.rules)?;
        checks::scheduling(&spec.scheduling, workers.template.as_ref())?;
        refuse_our_annotations(template)?;
        refuse_our_fields(template.spec.get_or_insert_default())?;
        let program = program::of(
            spec.trainer.as_ref(),
            &spec.elastic,
            workers.sharded.unwrap_or_default(),
            template,
        )?;
        checks::kept(spec.checkpoint.as_ref(), program.trainer())?;
        local_copies::check(spec.checkpoint.as_ref(), &program, template)?;
        let num_gpus = gpus(template, listed)?;
        refuse_claims_without_processes(template, procs)?;
        refuse_unused_devices(template, &program, procs, listed)?;
        let procs_per_worker = procs.unwrap_or(num_gpus.max(1));
        if !(1..=MAX_PROCS).contains(&procs_per_worker) {
            let message = format!("must be between 1 and {MAX_PROCS}");
            return invalid("spec.workers.procsPerWorker", message);
        }
        replica_size::check(spec, &program, procs_per_worker)?;
        Ok(Self {
            program,
            procs_per_worker,
            num_gpus,
        })
    }

    /// Takes the values of the newest generation, independent of the current spec.
    fn as_before(
        spec: &TrainingJobSpec,
        status: Option<&TrainingJobStatus>,
        running: Option<u32>,
    ) -> Self {
        let membership = status.and_then(|status| status.membership.as_ref());
        let stored = membership.and_then(MembershipStatus::procs_per_worker);
        // The status counts replicas.
        let pods = spec.workers.pods_per_replica.unwrap_or(1).max(1);
        let stored = stored.map(|of_replica| of_replica / pods);
        Self {
            program: program::as_it_runs(spec.trainer.as_ref(), &spec.elastic),
            procs_per_worker: running.or(stored).unwrap_or(1).clamp(1, MAX_PROCS),
            num_gpus: 0,
        }
    }
}
