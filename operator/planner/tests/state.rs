//! `status.state`: the job in one word, whatever the order of its conditions.
#![allow(clippy::unwrap_used)]

use roundhouse_planner::testing::{World, world};
use roundhouse_planner::{WriteBlocked, plan_refused};

/// Jobs at different moments of their life, and their state.
fn lives() -> Vec<(World, &'static str)> {
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
fn conditions_in_another_order_change_neither_the_state_nor_the_plan() {
    for (mut world, state) in lives() {
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
fn a_status_without_a_state_gets_it_and_nothing_else_changes() {
    for (mut world, state) in lives() {
        let before = world.observed.status.clone();
        world.observed.status.state = None;
        let plan = world.plan();
        assert_eq!(plan.status, before, "{state}");
        assert!(plan.actions.is_empty() && plan.events.is_empty(), "{state}");
    }
}

#[test]
fn what_was_refused_is_known_in_every_order_of_the_conditions() {
    let mut world = world(2);
    world.settle();
    let words = WriteBlocked::Refused("exceeded quota".to_owned());
    let before = world.observed.status.clone();
    let mut told = plan_refused(&world.plan(), &before, &words, world.now).status;
    assert_eq!(told.state.as_deref(), Some("Refused"));
    for _ in 0..told.conditions.len() {
        told.conditions.rotate_left(1);
        assert_eq!(WriteBlocked::told_in(&told).as_ref(), Some(&words));
    }
}
