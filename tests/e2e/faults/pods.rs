//! Faults of one worker while the operator runs.

use kube::ResourceExt;
use roundhouse_tests::{nodes, processes};
use rustix::process::Signal;

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

/// The agent and the rank are stopped, like in a container that its runtime has frozen. The agent does
/// not answer, although its node is healthy.
#[tokio::test(flavor = "multi_thread")]
async fn frozen_worker_is_left_out_until_it_runs_again() {
    let drill = Drill::start("e2e-frozen", 2 * STEPS, false).await;
    let first = drill.trains(3, 0).await;
    let mut members = drill.members(first).await;
    let victim = members.remove(1).name_any();
    let survivors: Vec<String> = members.iter().map(ResourceExt::name_any).collect();
    let agent = nodes::agent(&drill.space.name, &victim).unwrap();
    let frozen = [agent, nodes::process(&drill.space.name, &victim).unwrap()];
    let send = |signal| frozen.map(|process| processes::send(process, signal));
    assert_eq!(send(Signal::STOP), [true; 2]);
    let second = drill.trains(2, first).await;
    let message = drill.status().await.unwrap();
    let message = message.front().unwrap().message.clone();
    assert!(message.contains("its agent does not answer"), "{message}");
    assert_eq!(send(Signal::CONT), [true; 2]);
    drill.trains(3, second).await;
    drill.succeeds_after(1..=2, &survivors).await;
}
