//! Workers of two processes that share an optimizer. If one process dies, its agent restarts both,
//! and the other workers continue.

use kube::ResourceExt;
use serde_json::json;

use super::drill::{Drill, NUM_SHARDS};
use super::fault::Fault;

/// Steps of 50 ms: enough for two faults.
const NUM_STEPS: u64 = 1_500;

#[tokio::test(flavor = "multi_thread")]
async fn shared_optimizer_survives_a_killed_process_and_a_deleted_pod() {
    let mut job = Drill::digits(NUM_STEPS, false);
    job["spec"]["workers"]["procsPerWorker"] = json!(NUM_SHARDS);
    job["spec"]["trainer"]["parallel"] = json!({"shard": "Zero1"});
    job["spec"]["trainer"]["optimizer"] = json!({"name": "adamw", "learningRate": 0.001});
    let drill = Drill::start_job("e2e-zero1", job).await;
    let first = drill.trains(3, 0).await;
    let members = drill.members(first).await;
    let names: Vec<String> = members.iter().map(ResourceExt::name_any).collect();
    let [killed, deleted, untouched] = names.as_slice() else {
        panic!("{names:?}")
    };
    let of_untouched = drill.processes_of(untouched);

    drill.kill_one_of(killed).await;
    let second = drill.trains(3, first).await;
    Fault::Delete.inject(&drill, deleted).await;
    drill.trains(3, second).await;
    assert_eq!(drill.processes_of(untouched), of_untouched);

    // The agent restarts a replica without its container.
    drill
        .ends_well(1, &[killed.clone(), untouched.clone()])
        .await;
    let audit = drill.audit();
    assert!(!audit.contains("lost"), "{audit}");
    drill.compare_with_undisturbed_run();
    drill.delete().await;
}
