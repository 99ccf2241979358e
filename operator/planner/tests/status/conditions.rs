//! Conditions and `status.state`, which do not depend on the order of the conditions.

use roundhouse_api::ConditionType;
use roundhouse_planner::testing::{World, world};

/// Jobs in different phases of their lifecycle, with their state.
fn phases() -> Vec<(World, &'static str)> {
    let mut new = world(2);
    new.settle();
    let training = world(2).training();
    let mut suspended = training.clone();
    suspended.job.suspend = true;
    suspended.settle();
    let mut resumed = suspended.clone();
    resumed.job.suspend = false;
    let resumed = resumed.training();
    let mut rejected = suspended.clone();
    rejected.is_rejected("spec.checkpoint.keep: must be at least 2");
    rejected.settle();
    let mut failed = training.clone();
    failed.ends(0, 64, 0);
    failed.settle();
    let mut completed = training.clone();
    completed.ends(0, 0, 9);
    completed.ends(1, 0, 9);
    completed.settle();
    vec![
        (new, "WaitingForWorkers"),
        (training, "Training"),
        (suspended, "Suspended"),
        (resumed, "Training"),
        (rejected, "InvalidSpec"),
        (failed, "ConfigInvalid"),
        (completed, "Completed"),
    ]
}

#[test]
fn order_of_conditions_affects_neither_state_nor_plan() {
    for (mut world, state) in phases() {
        for _ in 0..world.observed.status.conditions.len() {
            world.observed.status.conditions.rotate_left(1);
            let plan = world.plan();
            assert_eq!(plan.status.state.as_deref(), Some(state));
            assert_eq!(
                plan.status, world.observed.status,
                "{state}: nothing to write"
            );
        }
    }
}

#[test]
fn status_without_state_gets_only_the_state() {
    for (mut world, state) in phases() {
        let before = world.observed.status.clone();
        world.observed.status.state = None;
        let plan = world.plan();
        assert_eq!(plan.status, before, "{state}");
        assert!(plan.actions.is_empty() && plan.events.is_empty(), "{state}");
    }
}

#[test]
fn status_follows_the_newest_spec() {
    let accepted = |world: &World| {
        let status = &world.observed.status;
        let accepted = status.condition(ConditionType::Accepted).unwrap();
        let seen = (status.observed_generation, accepted.observed_generation);
        (seen, accepted.message.clone())
    };
    let mut world = world(2).training();
    (world.job.generation, world.job.replicas) = (2, 3);
    (world.job.min_replicas, world.job.max_replicas) = (1, 3);
    world.settle();
    let (seen, message) = accepted(&world);
    assert_eq!(seen, (Some(2), Some(2)));
    assert!(message.starts_with("3 workers"), "{message}");
    assert_eq!(world.state(), "Training", "the state stays");
    let events = world.plan().events;
    assert!(events.is_empty(), "it was accepted before: {events:?}");
    world.ends(0, 64, 0);
    world.settle();
    assert_eq!(world.state(), "ConfigInvalid");
    world.job.generation = 3;
    world.settle();
    assert_eq!(world.observed.status.observed_generation, Some(3));
    let before = world.observed.status.conditions.clone();
    (world.job.generation, world.job.replicas) = (4, 0);
    world.is_rejected("spec.workers.replicas: must be at least 1");
    world.settle();
    assert_eq!(world.observed.status.observed_generation, Some(4));
    assert_eq!(world.observed.status.conditions, before);
}
