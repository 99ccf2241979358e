//! Jobs whose pods wait for scheduling gates, as in a queue.

use std::time::Duration;

use roundhouse_planner::PlanReason;
use roundhouse_planner::testing::{World, world};

const GATE: &str = "kueue.x-k8s.io/admission";

/// A job whose two workers have scheduling gates.
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
fn waiting_job_names_its_scheduling_gates() {
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
fn deadlines_start_when_scheduling_gates_are_removed() {
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
fn deadlines_of_a_job_queued_by_an_older_operator_start_later() {
    let mut world = queued();
    // An older operator did not store this.
    world.observed.status.queued = false;
    world.seconds_pass(3_600);
    gates(&mut world, &[]);
    world.settle();
    assert_eq!(world.observed.status.start_time, Some(world.time()));
    assert!(!world.observed.status.queued);
}

#[test]
fn deadlines_start_with_the_last_scheduling_gate() {
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
fn gated_replacement_does_not_stop_the_deadline() {
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
