//! Situations of jobs that train, recover or have ended.

use roundhouse_contract::{Progress, Straggler};
use serde_json::json;

use super::super::Situation;
use super::{Row, failed};
use crate::testing::{Case, before, job, progress};

pub(super) fn after_start() -> Vec<Row> {
    let slow = Progress {
        straggler: Some(Straggler {
            node_rank: 1,
            factor: 2.34,
        }),
        ..progress()
    };
    let killed = |case: Case| case.last_failure("Killed", 137, "killed by SIGKILL");
    vec![
        (
            Situation::BelowMinReplicas,
            killed(job().with("spec/workers/minReplicas", json!(2))).member(0).waits("BelowMinReplicas", "1 of 2 workers ready"),
            &["minReplicas (2)", "exit code 137: ended by SIGKILL", "rank 1 on node node-1"],
        ),
        (
            Situation::Recovering,
            killed(job()).member(0).waits("Recovering", "1 of 2 workers ready for generation 4"),
            &["keep their state", "ended by SIGKILL"],
        ),
        (
            Situation::CheckpointFailing,
            job().trains(2).with("status/checkpoint", json!({
                "step": 400, "time": before(120), "error": "/checkpoints/ml/digits: No space left on device"})),
            &["No space left", "holds 400 steps and is 2m old", "Repair the volume"],
        ),
        (
            Situation::NoProgress,
            job().trains(2).with("status/progress/updatedAt", json!(before(1_200))),
            &["no step for 20m", "step 480"],
        ),
        (
            Situation::Straggler,
            job().trains(2).reports(0, slow, ""),
            &["2.3 times", "node-1", "scale digits 1", "delete pod digits-worker-1-0"],
        ),
        (
            Situation::FewerWorkers,
            job().with("spec/workers/replicas", json!(3)).trains(2).unschedulable(2, "0/3 nodes are available"),
            &["2 of 3 workers", "0/3 nodes are available"],
        ),
        (Situation::Healthy, job().trains(2), &["Step 480 of 1000", "perplexity 12.50"]),
        (
            Situation::Diverged,
            failed(
                job().last_failure("ConfigInvalid", 64, "step 481: loss NaN, gradient norm NaN: training diverges on rank 1; lower"),
                "ConfigInvalid",
                "digits-worker-1-0: ConfigInvalid",
            ),
            &["learningRate", "onNonFinite", "submit it again"],
        ),
        (
            Situation::OutOfMemory,
            failed(
                job().last_failure("InternalError", 70, "rank 1: out of memory: lower trainer.microBatchSize"),
                "BackoffLimitExceeded",
                "7 incidents in a row",
            ),
            &["microBatchSize", "7 incidents in a row"],
        ),
        (
            Situation::DataInvalid,
            failed(job().last_failure("DataInvalid", 65, "/data/train is missing"), "DataInvalid", "digits-worker-1-0"),
            &["/data/train is missing", "trainer.data"],
        ),
        (
            Situation::ConfigInvalid,
            failed(job().last_failure("ConfigInvalid", 64, "model.width"), "ConfigInvalid", "digits-worker-1-0"),
            &["model.width"],
        ),
        (
            Situation::DeadlineExceeded,
            failed(job(), "StartDeadlineExceeded", "not all workers were ready within 600 s: no GPU"),
            &["no GPU", "startDeadlineSeconds"],
        ),
        (
            Situation::Failed,
            failed(killed(job()), "BackoffLimitExceeded", "7 incidents in a row without a new step"),
            &["7 incidents", "--previous", "ended by SIGKILL", "continues from the newest checkpoint"],
        ),
        (
            Situation::Succeeded,
            job().trains(2).condition("Succeeded", "True", "Completed", "all workers completed"),
            &["all workers completed"],
        ),
    ]
}
