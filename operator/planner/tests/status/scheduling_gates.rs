//! Jobs whose pods wait for scheduling gates, as in a queue.

use std::time::Duration;

use roundhouse_planner::PlanReason;
use roundhouse_planner::testing::{World, world};

const GATE: &str = "kueue.x-k8s.io/admission";

/// Two workers wait for their gates.
fn queued() -> World {
    let mut world = world(2);
    world.settle();
    gates(&mut world, &[GATE]);
    world.settle();
    world
}

fn gates(world: &mut World, gates: &[&str]) {
    for pod in &mut world.observed.pods {
        pod.gates = gates.iter().map(|gate| (*gate).to_owned()).collect();
    }
}

#[test]
fn a_gated_worker_waits_and_its_gate_is_named() {
    let world = queued();
    assert_eq!(world.state(), "SchedulingGated");
    let message = &world.observed.status.front().unwrap().message;
    assert!(
        message.contains("digits-worker-0-0") && message.contains(GATE),
        "{message}"
    );
    assert_eq!(world.observed.pods.len(), 2);
}

#[test]
fn the_clocks_of_a_queued_job_stand_still_and_begin_when_its_gates_are_gone() {
    let mut world = queued();
    world.job.start_deadline = Some(Duration::from_secs(60));
    world.job.active_deadline = Some(Duration::from_secs(600));
    world.seconds_pass(3_600);
    let plan = world.settle();
    assert_eq!(plan.reason, PlanReason::WaitingForWorkers);
    assert_eq!(world.state(), "SchedulingGated");

    gates(&mut world, &[]);
    let plan = world.settle();
    assert_eq!(world.state(), "WaitingForWorkers");
    assert_eq!(world.observed.status.start_time, Some(world.time()));
    assert_eq!(plan.requeue_after, Some(Duration::from_secs(60)));
    world.seconds_pass(60);
    world.settle();
    assert_eq!(world.state(), "StartDeadlineExceeded");
}

#[test]
fn the_clocks_begin_with_the_last_gate_also_if_those_before_it_wait_for_a_node() {
    let mut world = queued();
    world.job.start_deadline = Some(Duration::from_secs(60));
    world.seconds_pass(3_600);
    world.observed.pods[0].gates.clear();
    world.observed.pods[0].unschedulable = Some("0/3 nodes are available".to_owned());
    world.settle();
    assert_eq!(world.state(), "SchedulingGated");
    gates(&mut world, &[]);
    world.settle();
    assert_eq!(world.state(), "Unschedulable");
    assert_eq!(world.observed.status.start_time, Some(world.time()));
}

#[test]
fn a_replacement_that_is_gated_does_not_stop_the_clock_of_a_job_that_has_trained() {
    let mut world = world(2).training();
    world.job.active_deadline = Some(Duration::from_secs(600));
    world.vanishes(1);
    world.settle();
    world.observed.pods[1].gates = vec![GATE.to_owned()];
    world.settle();
    assert_eq!(world.state(), "SchedulingGated");
    world.seconds_pass(600);
    world.settle();
    assert_eq!(world.state(), "DeadlineExceeded");
}
