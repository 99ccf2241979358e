//! When a deadline ends a job, and when it does not.

use std::time::Duration;

use roundhouse_planner::testing::{World, raw_joining_job, world, world_of};
use roundhouse_planner::{Presence, WriteBlocked, plan_refused};

const DEADLINE: i64 = 600;

/// Two workers are made and not ready; the job must start within [`DEADLINE`] seconds.
fn starting() -> World {
    let mut world = world(2);
    world.job.start_deadline = Some(Duration::from_secs(DEADLINE.unsigned_abs()));
    world.settle();
    world
}

#[test]
fn workers_that_became_ready_while_the_operator_was_away_train_however_late_it_is() {
    let mut world = starting();
    world.prepared(0);
    world.prepared(1);
    world.seconds_pass(DEADLINE + 1);
    world.settle();
    assert_eq!(world.state(), "Training");
}

#[test]
fn the_start_deadline_asks_for_no_more_workers_than_training_needs() {
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
fn a_deadline_ends_a_job_only_on_pods_that_the_api_server_has_confirmed() {
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
fn time_in_which_no_operator_could_make_pods_does_not_count_for_the_start_deadline() {
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
fn workers_that_are_never_ready_end_the_job_with_the_real_reason() {
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
fn a_job_without_a_start_deadline_waits_for_a_node_for_as_long_as_it_takes() {
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
fn workers_that_the_api_server_refuses_end_the_job_with_its_words() {
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
fn a_start_deadline_tells_which_name_was_taken() {
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
fn a_clock_that_runs_backwards_ends_nothing() {
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
fn a_script_that_is_not_in_the_lobby_at_the_start_deadline_is_told_of_the_call_that_is_missing() {
    let mut world = joining(2);
    world.job.start_deadline = Some(Duration::from_secs(60));
    world.settle();
    world.prepared(0);
    world.prepared(1);
    world.observed.pods[1].ready = false;
    world.settle();
    let told = |world: &World| world.observed.status.front().unwrap().message.clone();
    assert!(told(&world).contains("1 of 2 workers ready; gpt-worker-1-0 is starting: its script"));
    world.seconds_pass(61);
    world.settle();
    assert_eq!(world.state(), "StartDeadlineExceeded");
    let words = told(&world);
    assert!(words.contains("roundhouse.join()"), "{words}");
}
