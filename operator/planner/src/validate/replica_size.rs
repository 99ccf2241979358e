//! Checks the number of processes that hold one copy of the state together, and whether they can.

use roundhouse_api::{Checkpoint, TrainingJobSpec};
use roundhouse_contract::{Mode, OnScale};

use crate::invalid::{InvalidSpec, invalid};
use crate::program::Program;
use crate::validate::MAX_PODS;

const PODS: &str = "spec.workers.podsPerReplica";

/// Checks `workers.podsPerReplica` and `trainer.parallel` against the number of processes.
pub(super) fn check(
    spec: &TrainingJobSpec,
    program: &Program,
    procs_per_worker: u32,
) -> Result<(), InvalidSpec> {
    let pods = spec.workers.pods_per_replica.unwrap_or(1);
    if !(1..=MAX_PODS).contains(&pods) {
        return invalid(PODS, format!("must be between 1 and {MAX_PODS}"));
    }
    if pods > 1 && program.mode() == Mode::Restart {
        return invalid(
            PODS,
            "leave it out: with spec.elastic.mode Restart all processes of all workers restart together; or set the \
             mode to InProcess and spec.workers.sharded for a script that calls roundhouse.join()",
        );
    }
    let is_shared = match program {
        Program::Trainer(config) => config.parallel.is_sharded(),
        Program::Joining { sharded, .. } => *sharded,
        Program::Script(_) => false,
    };
    if pods > 1 && !is_shared {
        return invalid(
            PODS,
            "leave it out: the processes of several pods must share one copy of the model; set spec.trainer.parallel, or \
             spec.workers.sharded for a script that calls roundhouse.join()",
        );
    }
    let checkpoint = spec.checkpoint.as_ref();
    let has_peer_copies = checkpoint.is_some_and(Checkpoint::has_peer_copies);
    if has_peer_copies && pods == 1 && spec.workers.spares == 0 {
        return invalid(
            "spec.checkpoint.local.peerCopies",
            "needs another pod that holds the copies: set spec.workers.spares to at least 1, or \
             spec.workers.podsPerReplica to 2 or more, or leave it out",
        );
    }
    let parallel = program.trainer().map(|it| it.parallel).unwrap_or_default();
    let is_scaled = spec.elastic.on_scale == OnScale::ScaleBatch;
    if is_scaled && parallel.pipeline.is_some_and(|stages| stages > 1) {
        return invalid(
            "spec.elastic.onScale",
            "leave out ScaleBatch with spec.trainer.parallel.pipeline: a smaller batch has fewer passes, and the \
             stages of the pipeline wait for each other",
        );
    }
    let procs = procs_per_worker * pods;
    if procs == 1 && parallel.shard.is_some() {
        return invalid(
            "spec.trainer.parallel.shard",
            "needs several processes per worker: set spec.workers.procsPerWorker to at least 2, or remove it",
        );
    }
    for (field, number) in [
        ("spec.trainer.parallel.expert", parallel.expert),
        ("spec.trainer.parallel.tensor", parallel.tensor),
        ("spec.trainer.parallel.pipeline", parallel.pipeline),
    ] {
        if let Some(number) = number.filter(|number| *number != procs) {
            let change = if pods > 1 {
                format!(
                    "choose spec.workers.procsPerWorker and spec.workers.podsPerReplica so that their product is {number}"
                )
            } else {
                format!("set spec.workers.procsPerWorker to {number}")
            };
            return invalid(
                field,
                format!(
                    "needs {number} processes per worker, and there are {procs}: {change}, or remove it"
                ),
            );
        }
    }
    Ok(())
}
