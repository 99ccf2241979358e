//! Faults of one worker while the operator runs.

use super::drill::Drill;
use super::fault::Fault;

/// Steps of 50 ms: enough until the worker is back.
const STEPS: u64 = 1_000;

async fn lose_worker(fault: Fault) {
    let name = format!("e2e-{}", fault.name());
    let drill = Drill::start(&name, STEPS, false).await;
    let first = drill.trains(3, 0).await;
    let (victim, survivors) = fault.victim(&drill.members(first).await);
    fault.inject(&drill, &victim).await;
    drill.trains(3, first).await;
    drill.succeeds(fault.incidents(), &survivors).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_rank_zero_is_an_incident_and_training_continues() {
    lose_worker(Fault::KillRankZero).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_other_rank_is_an_incident_and_training_continues() {
    lose_worker(Fault::KillAnother).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_pod_is_replaced_without_an_incident() {
    lose_worker(Fault::Delete).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn force_deleted_pod_is_replaced_without_an_incident() {
    lose_worker(Fault::DeleteByForce).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn drained_worker_moves_without_an_incident() {
    lose_worker(Fault::Drain).await;
}
