//! When time that is over ends a job, and when it does not.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use roundhouse_planner::testing::{World, world};

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
fn what_deletes_a_pod_counts_an_incident_or_ends_the_job_cannot_be_taken_back() {
    let is_irrevocable = |world: &World| {
        let before = &world.observed.status;
        world.plan().is_irrevocable(before)
    };
    assert!(!is_irrevocable(&world(2)), "pods are made");
    let training = starting().training();
    assert!(!is_irrevocable(&training));
    let mut suspended = training.clone();
    suspended.job.suspend = true;
    assert!(is_irrevocable(&suspended), "pods are deleted");
    let mut failed = training.clone();
    failed.ends(0, 1, 3);
    assert!(is_irrevocable(&failed), "an incident is counted");
    let mut late = starting();
    late.seconds_pass(DEADLINE + 1);
    late.observed.fresh = true;
    assert!(is_irrevocable(&late), "the job ends");
}
