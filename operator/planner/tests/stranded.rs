//! A generation that breaks although nobody dies.
#![allow(missing_docs, clippy::unwrap_used)]

use roundhouse_planner::PlanReason;
use roundhouse_planner::testing::{World, world};

fn generation(world: &World) -> u64 {
    let membership = world.observed.status.membership.as_ref();
    membership.unwrap().generation
}

#[test]
fn members_that_have_lost_each_other_get_a_new_generation_and_it_is_one_incident() {
    let mut world = world(3).training();
    world.seconds_pass(60);
    world.is_ready(0, false);
    world.is_ready(2, false);
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!(generation(&world), 2);
    let status = &world.observed.status;
    assert_eq!(status.incidents.total, 1);
    assert_eq!(status.last_failure.as_ref().unwrap().reason, "PeersLost");
}

#[test]
fn a_member_is_given_time_to_hear_of_its_generation() {
    let mut world = world(2).training();
    world.seconds_pass(60);
    world.is_ready(1, false);
    world.settle();
    assert_eq!(generation(&world), 2);
    world.seconds_pass(10);
    let plan = world.settle();
    assert_eq!(generation(&world), 2);
    assert!(plan.requeue_after.is_some_and(|after| after.as_secs() <= 5));
    world.seconds_pass(10);
    world.settle();
    assert_eq!(generation(&world), 3);
    assert_eq!(world.observed.status.incidents.total, 2);
}

#[test]
fn late_news_of_a_broken_generation_are_not_held_against_the_next() {
    let mut world = world(2).training();
    world.ends(0, 137, 40);
    world.job.min_replicas = 1;
    world.settle();
    assert_eq!(generation(&world), 2);
    world.seconds_pass(1);
    world.is_ready(1, false);
    world.settle();
    assert_eq!(generation(&world), 2);
    assert_eq!(world.observed.status.incidents.total, 1);
}

#[test]
fn survivors_of_a_worker_that_left_are_no_second_incident() {
    let mut world = world(3).training();
    world.seconds_pass(60);
    world.observed.pods[1].deleting = true;
    world.is_ready(0, false);
    world.is_ready(2, false);
    world.settle();
    assert_eq!(world.observed.status.incidents.total, 0);
}

#[test]
fn generations_that_break_again_and_again_end_the_job() {
    let mut world = world(2).training();
    for _ in 0..=world.job.backoff_limit {
        world.seconds_pass(30);
        world.is_ready(0, false);
        world.settle();
    }
    assert_eq!(world.state(), "BackoffLimitExceeded");
}
