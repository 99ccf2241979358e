//! Two process groups never train at once: a process leaves its generation only for a newer one
//! whose membership it receives.

mod property;

use jiff::SignedDuration;
use roundhouse_api::{Checkpoint, CheckpointVolume};
use roundhouse_planner::testing::{World, world};
use roundhouse_planner::{PlanReason, Pod};

/// Cuts off the node of a pod, as the node lifecycle controller reports it.
fn is_cut_off(world: &mut World, at: usize) {
    world.is_unreachable(at, true);
    world.observed.pods[at].ready_at = Some(world.now);
}

/// Worker 0 trains alone. Worker 1 joins, and the node of worker 0 is cut off before its kubelet
/// shows generation 2 there.
fn joined_by_one() -> World {
    let mut world = world(1).training();
    (world.job.replicas, world.job.max_replicas) = (2, 2);
    world.settle();
    world.prepared(1);
    world.settle();
    assert_eq!(world.generations(), [2, 2]);
    for at in 0..2 {
        world.is_on(at, &format!("n{at}"));
    }
    world.lingering = true;
    world.seconds_pass(5);
    is_cut_off(&mut world, 0);
    world
}

#[test]
fn unformed_generation_waits_for_the_one_that_trains() {
    let mut world = joined_by_one();
    for _ in 0..9 {
        world.settle();
        assert_eq!(world.generation(), 2);
        assert_eq!(world.state(), "NodeUnreachable");
        world.seconds_pass(30);
    }
    let mut back = world.clone();
    back.is_unreachable(0, false);
    assert_eq!(back.settle().reason, PlanReason::Training);
    assert_eq!((back.generation(), back.observed.pods.len()), (2, 2));
    // After this time Kubernetes gives up its pods, too.
    world.seconds_pass(60);
    world.settle();
    assert!(world.observed.pods[0].deleting);
    assert_eq!(world.generation(), 3);
}

#[test]
fn formed_generation_continues_at_once() {
    let mut world = joined_by_one();
    world.observed.formed = Some(2);
    world.settle();
    assert_eq!(world.generation(), 3);
    assert!(!world.observed.pods[0].deleting, "its node may blink");
}

#[test]
fn formed_generation_is_stored() {
    let mut world = joined_by_one();
    world.is_unreachable(0, false);
    world.observed.formed = Some(2);
    world.settle();
    // Another operator, which has not polled any agent yet.
    world.observed.formed = None;
    is_cut_off(&mut world, 0);
    world.settle();
    assert_eq!(world.generation(), 3);
}

/// One of two members has died. The other was out of touch while two spares got
/// places, and has returned.
fn with_the_only_state() -> World {
    let mut world = world(2);
    world.job.spares = 2;
    let mut world = world.lobby();
    world.settle();
    world.observed.formed = Some(1);
    world.settle();
    for at in 0..4 {
        world.is_on(at, &format!("n{at}"));
    }
    world.lingering = true;
    is_cut_off(&mut world, 0);
    world.vanishes(1);
    world.settle();
    let places = |pod: &Pod| pod.membership.as_ref().map(|it| it.generation);
    assert_eq!(places(&world.observed.pods[1]), Some(2));
    assert!(!world.observed.pods.iter().any(|pod| pod.deleting));
    world.is_unreachable(0, false);
    world
}

#[test]
fn holder_of_the_only_state_stays() {
    let mut world = with_the_only_state();
    let mut formed = world.clone();
    world.settle();
    assert!(!world.observed.pods[0].deleting);
    assert_eq!(world.generations()[0], world.generation());
    formed.observed.formed = Some(2);
    formed.settle();
    assert!(
        formed.observed.pods[0].deleting,
        "the others hold a newer one"
    );
}

/// Two members train, and `leaving` of them are asked to leave within a minute.
/// Their replacements are prepared.
fn drained(leaving: usize, has_checkpoint: bool) -> World {
    let mut world = world(2).training();
    world.job.checkpoint = has_checkpoint.then(|| Checkpoint {
        volume: CheckpointVolume::default(),
        every_steps: None,
        every_seconds: None,
        keep: 3,
        best: None,
        local: None,
    });
    world.observed.formed = Some(1);
    world.settle();
    for at in 0..leaving {
        world.is_deleted(at);
        world.observed.pods[at].gone_by = Some(world.now + SignedDuration::from_secs(60));
    }
    world.settle();
    for at in 2..world.observed.pods.len() {
        world.prepared(at);
    }
    world
}

#[test]
fn new_workers_wait_for_leaving_holders_that_save() {
    let mut world = drained(2, true);
    let plan = world.settle();
    assert_eq!(world.generation(), 1, "{plan:?}");
    assert!(plan.requeue_after.is_some_and(|it| it.as_secs() <= 60));
    let mut gone = world.clone();
    for _ in 0..2 {
        gone.vanishes(0);
    }
    gone.settle();
    assert_eq!(gone.generation(), 2);
    // The wait ends with their grace period.
    world.seconds_pass(61);
    world.settle();
    assert_eq!(world.generation(), 2);
}

#[test]
fn new_workers_do_not_wait_if_a_member_stays_or_none_saves() {
    for (leaving, has_checkpoint) in [(1, true), (2, false)] {
        let mut world = drained(leaving, has_checkpoint);
        world.settle();
        assert_eq!(world.generation(), 2, "{leaving} {has_checkpoint}");
    }
}
