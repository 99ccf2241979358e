//! A worker whose container is frozen: its node is healthy, and its agent does not answer.

use kube::ResourceExt;
use roundhouse_tests::{nodes, processes};
use rustix::process::Signal;

use super::drill::Drill;

/// Steps of 50 ms: enough until the worker is back.
const STEPS: u64 = 2_000;

/// The agent and the rank are stopped, like in a container that its runtime has frozen. The agent
/// does not answer, although its node is healthy.
#[tokio::test(flavor = "multi_thread")]
async fn frozen_worker_is_left_out_until_it_runs_again() {
    let drill = Drill::start("e2e-frozen", STEPS, false).await;
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
