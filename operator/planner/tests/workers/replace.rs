//! When the next attempt of a worker replaces its pod.

use std::time::Duration;

use jiff::SignedDuration;
use roundhouse_contract::Action as Instruction;
use roundhouse_planner::testing::{World, raw_joining_job, world, world_of};
use roundhouse_planner::{DeleteReason, PlanReason, PodPhase};

use crate::{created, deleted, trains};

#[test]
fn refused_pods_are_replaced_with_back_off() {
    let mut world = world(1);
    world.settle();
    let mut waits = Vec::new();
    for _ in 0..8 {
        let last = world.observed.pods.len() - 1;
        world.observed.pods[last].created_at = Some(world.now);
        world.fails(last, "OutOfcpu");
        let attempt = world.observed.pods[last].attempt;
        let plan = world.settle();
        assert_eq!(world.observed.pods.len(), 1, "failed pods do not pile up");
        if world.observed.pods[0].attempt == attempt {
            let wait = plan.requeue_after.unwrap().as_secs();
            waits.push(wait);
            assert_eq!(world.state(), "WorkerFailed");
            world.seconds_pass(i64::try_from(wait).unwrap());
            world.settle();
        } else {
            waits.push(0);
        }
        assert_eq!(world.observed.pods[0].attempt, attempt + 1);
    }
    assert_eq!(waits, [0, 10, 20, 40, 80, 160, 300, 300]);
}

#[test]
fn clock_ahead_does_not_reset_the_back_off() {
    let mut world = world(1);
    world.settle();
    world.observed.pods[0].attempt = 2;
    world.observed.pods[0].created_at = Some(world.now);
    world.seconds_pass(1);
    world.fails(0, "OutOfcpu");
    world.observed.pods[0].ready_at = Some(world.now + SignedDuration::from_mins(10));
    let plan = world.plan();
    assert!(created(&plan).is_empty(), "that is no long life");
    assert_eq!(plan.requeue_after, Some(Duration::from_secs(19)));
}

#[test]
fn long_lived_pod_is_replaced_at_once() {
    let mut world = world(1);
    world.settle();
    world.observed.pods[0].attempt = 5;
    world.observed.pods[0].created_at = Some(world.now);
    world.seconds_pass(600);
    world.observed.pods[0].ready_at = Some(world.now);
    world.fails(0, "Evicted");
    assert_eq!(created(&world.plan()), [(0, 6)]);
}

#[test]
fn terminating_pod_does_not_delay_its_replacement() {
    let mut world = trains(2);
    world.lingering = true;
    world.is_deleted(1);
    world.settle();
    world.prepared(2);
    assert_eq!(world.settle().reason, PlanReason::Training);
    let members: Vec<_> = world
        .observed
        .pods
        .iter()
        .map(|pod| pod.membership.as_ref().unwrap())
        .map(|document| (document.generation, document.action))
        .collect();
    let newest = world
        .observed
        .status
        .membership
        .as_ref()
        .unwrap()
        .generation;
    assert_eq!(members[0], (newest, Instruction::Join));
    assert_eq!(members[2], (newest, Instruction::Join));
    assert!(
        members[1].1 == Instruction::Leave,
        "one host name, one member"
    );
}

#[test]
fn failed_pod_is_replaced_by_the_next_attempt() {
    let mut world = world(2).training();
    world.observed.pods[1].phase = PodPhase::Failed;
    let plan = world.plan();
    assert_eq!(created(&plan), [(1, 1)]);
    let replaced = ("digits-worker-1-0".to_owned(), DeleteReason::Replaced);
    assert_eq!(deleted(&plan), [replaced]);
}

#[test]
fn terminating_pod_is_replaced_and_not_deleted_again() {
    let mut world = world(2).training();
    world.observed.pods[1].deleting = true;
    let plan = world.plan();
    assert_eq!(created(&plan), [(1, 1)]);
    assert!(deleted(&plan).is_empty());
}

#[test]
fn vanished_pod_is_replaced_without_incident() {
    let mut world = trains(2);
    world.vanishes(0);
    assert_eq!(created(&world.plan()).len(), 1);
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!(world.observed.status.incidents.total, 0);
}

fn joining(workers: u32) -> World {
    world_of(&raw_joining_job(workers))
}

#[test]
fn failure_after_the_last_step_replaces_completed_workers() {
    let mut world = joining(2).training();
    world.ends(1, 0, 100);
    world.settle();
    world.ends(0, 1, 100);
    world.settle();
    let names: Vec<_> = world.observed.pods.iter().map(|pod| &pod.name).collect();
    assert_eq!(names, ["gpt-worker-0-0", "gpt-worker-1-1"]);
    world.restarts(0);
    for at in 0..2 {
        world.prepared(at);
    }
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!(world.generations(), [2, 2]);
}
