//! The only worker of a job loses its process. Its container restarts, and the pod's volume still
//! has the local copies of the state.

use roundhouse_tests::cluster::{DEADLINE, until};
use serde_json::json;

use super::drill::Drill;
use super::fault::Fault;

/// Steps of 50 ms: enough for the fault.
const STEPS: u64 = 300;
/// Number of steps between two copies.
const EVERY: u64 = 5;
/// Steps before the fault: many copies, and no checkpoint yet.
const STEPS_BEFORE: usize = 35;

#[tokio::test(flavor = "multi_thread")]
async fn lone_worker_continues_from_the_copy_in_its_pod() {
    let mut job = Drill::digits(STEPS, false);
    job["spec"]["workers"]["replicas"] = json!(1);
    job["spec"]["checkpoint"]["local"] = json!({"everySteps": EVERY, "sizeLimit": "64Mi"});
    let drill = Drill::start_job("e2e-copies", job).await;
    let first = drill.trains(1, 0).await;
    let members = drill.members(first).await;
    let (worker, _) = Fault::KillRankZero.victim(&members);
    let committed = until("steps and copies", DEADLINE, || async {
        Ok((drill.num_committed(first) >= STEPS_BEFORE).then_some(()))
    });
    drill.or_dump(committed.await).await;
    Fault::KillRankZero.inject(&drill, &worker).await;
    drill.trains(1, first).await;
    drill.ends_well(1, &[]).await;
    let progress = drill.status().await.unwrap().progress.unwrap().progress;
    let repeated = progress.repeated_steps;
    assert!(repeated <= 2 * EVERY, "{repeated}: {}", drill.audit());
    drill.compare_with_undisturbed_run();
    drill.delete().await;
}
