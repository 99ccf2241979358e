//! When a deadline ends a job, and when it does not.

use std::time::Duration;

use roundhouse_planner::testing::{World, raw_joining_job, world, world_of};
use roundhouse_planner::{Presence, WriteBlocked, plan_refused};

const DEADLINE: i64 = 600;

/// Two workers are created and not ready; the job must start within [`DEADLINE`] seconds.
fn starting() -> World {
    let mut world = world(2);
    world.job.start_deadline = Some(Duration::from_secs(DEADLINE.unsigned_abs()));
    world.settle();
    world
}

#[test]
fn ready_workers_train_after_the_start_deadline() {
    let mut world = starting();
    world.prepared(0);
    world.prepared(1);
    world.seconds_pass(DEADLINE + 1);
    world.settle();
    assert_eq!(world.state(), "Training");
}

#[test]
fn start_deadline_needs_only_the_minimum() {
    for (ready, state) in [(0, "StartDeadlineExceeded"), (1, "Training")] {
        let mut world = starting();
        world.job.min_replicas = 1;
        for at in 0..ready {
            world.prepared(at);
        }
        world.seconds_pass(DEADLINE + 1);
        world.settle();
        assert_eq!(world.state(), state, "{ready} ready");
    }
}

#[test]
fn deadline_applies_only_to_a_confirmed_state() {
    let mut active = starting().training();
    active.job.active_deadline = Some(Duration::from_secs(60));
    let cases = [
        (starting(), "StartDeadlineExceeded"),
        (active, "DeadlineExceeded"),
    ];
    for (mut world, reason) in cases {
        world.observed.fresh = false;
        assert!(!world.plan().needs_fresh, "{reason}: there is time");
        world.seconds_pass(DEADLINE + 1);
        let plan = world.settle();
        assert!(!plan.status.is_terminal(), "{reason}");
        assert!(plan.needs_fresh && plan.requeue_after.is_some(), "{reason}");
        world.observed.fresh = true;
        let plan = world.settle();
        assert_eq!(world.state(), reason);
        assert!(!plan.needs_fresh, "it has ended");
    }
}

#[test]
fn time_without_an_operator_does_not_count_for_the_start() {
    let mut world = starting();
    world.seconds_pass(DEADLINE + 1);
    world.observed.watched_since = Some(world.now);
    let plan = world.settle();
    assert_eq!(world.state(), "WaitingForWorkers");
    assert!(plan.requeue_after.is_some());
    world.seconds_pass(DEADLINE);
    world.settle();
    assert_eq!(world.state(), "StartDeadlineExceeded");
}

#[test]
fn missed_start_deadline_names_the_cause() {
    let mut world = world(2);
    world.job.start_deadline = Some(Duration::from_secs(600));
    world.settle();
    world.observed.pods[1].unschedulable = Some("0/2 nodes: Insufficient nvidia.com/gpu".into());
    let plan = world.settle();
    assert_eq!(world.state(), "Unschedulable");
    assert_eq!(plan.requeue_after, world.job.start_deadline);
    world.seconds_pass(600);
    world.settle();
    assert_eq!(world.state(), "StartDeadlineExceeded");
    let message = &world.observed.status.front().unwrap().message;
    assert!(message.contains("Insufficient nvidia.com/gpu"), "{message}");
}

#[test]
fn job_without_start_deadline_waits_for_a_node() {
    let mut world = world(2);
    world.settle();
    world.observed.pods[1].unschedulable = Some("0/2 nodes: Insufficient nvidia.com/gpu".into());
    world.seconds_pass(100_000);
    world.settle();
    assert_eq!(world.state(), "Unschedulable");
    for at in 0..2 {
        world.prepared(at);
    }
    world.settle();
    assert_eq!(world.state(), "Training");
}

#[test]
fn missed_start_deadline_names_the_refusal() {
    let mut world = world(1);
    world.job.start_deadline = Some(Duration::from_secs(600));
    let before = world.observed.status.clone();
    let words = WriteBlocked::Refused("pods is forbidden: exceeded quota".to_owned());
    let plan = plan_refused(&world.plan(), &before, &words, world.now);
    world.observed.status = plan.status;
    world.seconds_pass(600);
    let plan = world.plan();
    let front = plan.status.front().unwrap();
    assert_eq!(front.reason, "StartDeadlineExceeded");
    assert!(front.message.contains("exceeded quota"), "{front:?}");
}

#[test]
fn missed_start_deadline_names_the_taken_name() {
    let mut world = world(1);
    world.job.start_deadline = Some(Duration::from_secs(600));
    world.observed.service = Presence::Foreign;
    world.settle();
    world.seconds_pass(600);
    world.settle();
    let front = world.observed.status.front().unwrap();
    assert_eq!(front.reason, "StartDeadlineExceeded");
    assert!(front.message.contains("Service digits exists"), "{front:?}");
}

#[test]
fn clock_set_back_does_not_fail_the_job() {
    let mut world = world(1);
    world.job.active_deadline = Some(Duration::from_secs(100));
    world.seconds_pass(1_000);
    world.settle();
    world.seconds_pass(-900);
    let plan = world.settle();
    assert_eq!(world.state(), "WaitingForWorkers");
    assert!(plan.requeue_after.is_some());
}

fn joining(workers: u32) -> World {
    world_of(&raw_joining_job(workers))
}

#[test]
fn missed_start_deadline_names_the_missing_join_call() {
    let mut world = joining(2);
    world.job.start_deadline = Some(Duration::from_secs(60));
    world.settle();
    world.prepared(0);
    world.prepared(1);
    world.observed.pods[1].ready = false;
    world.settle();
    let message = |world: &World| world.observed.status.front().unwrap().message.clone();
    assert!(
        message(&world).contains("1 of 2 workers ready; gpt-worker-1-0 is starting: its script")
    );
    world.seconds_pass(61);
    world.settle();
    assert_eq!(world.state(), "StartDeadlineExceeded");
    let words = message(&world);
    assert!(words.contains("roundhouse.join()"), "{words}");
}
