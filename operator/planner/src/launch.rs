//! Builds the environment of a worker from a validated job. Pure.
//!
//! Pods of a cluster and processes of `run --local` use the same function, so a field of the job
//! cannot reach only one of them.

use std::path::PathBuf;

use roundhouse_api::Checkpoint;
use roundhouse_contract::environment::{CheckpointEnvironment, LocalCopiesEnvironment};
use roundhouse_contract::{WorkerEnvironment, WorkerProgram, WorkerSite};

use crate::program::{Program, Script};
use crate::validate::{JobIdentity, ValidatedJob};

/// The environment of the worker with this index at this site.
///
/// Every field of the job is listed, so a new field does not compile until its author decides
/// whether workers need it.
#[must_use]
pub fn environment(job: &ValidatedJob, worker_index: u32, site: WorkerSite) -> WorkerEnvironment {
    let ValidatedJob {
        identity: JobIdentity {
            namespace,
            name,
            uid,
        },
        procs_per_worker,
        pods_per_replica,
        grace,
        program,
        checkpoint,
        stall_timeout_seconds,
        // Only pods of a cluster need it; see `WorkerSite::expected_device`.
        expected_device: _,
        template: _,
        scheduling: _,
        network_policy: _,
        // Only the planner's decisions need these.
        generation: _,
        deleting: _,
        finalizers: _,
        suspend: _,
        replicas: _,
        min_replicas: _,
        max_replicas: _,
        spares: _,
        join_window: _,
        built_from: _,
        backoff_limit: _,
        max_incidents: _,
        max_replacements: _,
        rules: _,
        avoid_node: _,
        start_deadline: _,
        active_deadline: _,
        ttl_after_finished: _,
        clean_pod_policy: _,
        success_policy: _,
    } = job;
    let WorkerSite {
        address,
        rendezvous_port,
        membership_file,
        replica_place_file,
        run_dir,
        trainer_config_file,
        data_dir,
        checkpoint_dir,
        copies_dir,
        copy_pair_file,
        expected_device,
    } = site;
    let program = match program {
        Program::Trainer(config) => WorkerProgram::Trainer {
            config_file: trainer_config_file,
            data_dir,
            sharded: config.parallel.is_sharded(),
        },
        Program::Joining {
            command: _,
            sharded,
        } => WorkerProgram::Joining { sharded: *sharded },
        Program::Script(Script {
            command: _,
            peer_failure_window,
            leave_grace,
        }) => WorkerProgram::Restarting {
            peer_failure_window: *peer_failure_window,
            leave_grace: *leave_grace,
        },
    };
    let copy_pair_file = copy_pair_file.filter(|_| job.has_copy_pairs());
    let checkpoint = checkpoint
        .as_ref()
        .map(|checkpoint| of_checkpoint(checkpoint, checkpoint_dir, copies_dir, copy_pair_file));
    WorkerEnvironment {
        job_name: name.clone(),
        job_namespace: namespace.clone(),
        job_uid: uid.clone(),
        worker_index,
        procs_per_worker: *procs_per_worker,
        pods_per_replica: *pods_per_replica,
        program,
        expected_device,
        termination_grace: *grace,
        stall_timeout_seconds: *stall_timeout_seconds,
        checkpoint,
        address,
        rendezvous_port,
        membership_file,
        replica_place_file,
        run_dir,
    }
}

/// `dir` is shared by all workers, `copies_dir` and `pair_file` are of this worker alone.
fn of_checkpoint(
    checkpoint: &Checkpoint,
    dir: PathBuf,
    copies_dir: PathBuf,
    pair_file: Option<PathBuf>,
) -> CheckpointEnvironment {
    let Checkpoint {
        volume: _,
        every_steps,
        every_seconds: _,
        keep,
        best,
        local,
    } = checkpoint;
    CheckpointEnvironment {
        dir,
        every_steps: *every_steps,
        every_seconds: checkpoint.seconds(),
        keep: *keep,
        best: best.map(|best| best.metric),
        job_uid: None,
        local: local.as_ref().map(|local| LocalCopiesEnvironment {
            dir: copies_dir,
            every_steps: local.every_steps,
            max_bytes: local.max_bytes(),
            pair_file,
        }),
    }
}
