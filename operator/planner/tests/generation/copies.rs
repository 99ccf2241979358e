//! Pods that keep copies of the state (`checkpoint.local`): nothing continues from an older state
//! while such a pod is about to return.

use roundhouse_contract::Action as Instruction;
use roundhouse_planner::testing::{World, world};

/// One worker has trained, and a spare waits. The worker's index is `trained`.
fn trained(trained: usize, keeps_copies: bool) -> World {
    let mut world = world(1);
    world.job.spares = 1;
    world.saves(keeps_copies);
    world.settle();
    world.prepared(trained);
    world.settle();
    world.prepared(1 - trained);
    world.observed.formed = Some(1);
    world.settle();
    assert_eq!(members(&world), [trained]);
    world.seconds_pass(60);
    world
}

/// The pods that are members of the newest generation, by position.
fn members(world: &World) -> Vec<usize> {
    let newest = world.generation();
    let pods = world.observed.pods.iter().enumerate();
    let is_member = pods.filter(|(_, pod)| {
        pod.membership.as_ref().is_some_and(|place| {
            place.generation == newest
                && place.action == Instruction::Join
                && place.incarnation == pod.incarnation()
        })
    });
    is_member.map(|(at, _)| at).collect()
}

#[test]
fn spare_waits_for_a_worker_with_a_copy() {
    for at in 0..2 {
        let mut world = trained(at, true);
        world.ends(at, 137, 40);
        world.settle();
        assert_eq!(world.generation(), 1);
        let message = &world.observed.status.front().unwrap().message;
        assert!(message.contains("keeps a copy"), "{message}");
        world.restarts(at);
        world.seconds_pass(200);
        world.settle();
        assert_eq!(world.generation(), 1);
        world.prepared(at);
        world.settle();
        assert_eq!((world.generation(), members(&world)), (2, vec![at]));
    }
}

#[test]
fn spare_replaces_a_worker_without_a_copy_at_once() {
    let mut world = trained(0, false);
    world.ends(0, 137, 40);
    world.settle();
    assert_eq!((world.generation(), members(&world)), (2, vec![1]));
}

#[test]
fn spare_replaces_a_worker_whose_pod_is_gone_at_once() {
    let mut world = trained(0, true);
    world.vanishes(0);
    world.settle();
    assert_eq!((world.generation(), members(&world)), (2, vec![0]));
}

#[test]
fn wait_for_a_copy_ends() {
    let mut world = trained(0, true);
    world.ends(0, 137, 40);
    world.settle();
    world.seconds_pass(301);
    world.settle();
    assert_eq!((world.generation(), members(&world)), (2, vec![1]));
}

#[test]
fn worker_keeps_its_copy_through_generations_that_never_form() {
    let mut world = trained(1, true);
    for _ in 0..3 {
        world.ends(1, 137, 40);
        world.settle();
        world.restarts(1);
        world.seconds_pass(5);
        world.settle();
        world.prepared(1);
        world.settle();
        assert_eq!(members(&world), [1]);
    }
    assert_eq!(world.generation(), 4);
    // The operator still knows that generation 1 is the newest one that has formed.
    world.ends(1, 137, 40);
    world.settle();
    assert_eq!(world.generation(), 4);
    world.seconds_pass(301);
    world.settle();
    assert_eq!((world.generation(), members(&world)), (5, vec![0]));
}

/// The new worker may have trained in generation 2 or not, so it waits, but not long.
#[test]
fn member_of_an_unformed_generation_waits_for_a_copy() {
    let mut world = trained(0, true);
    (world.job.replicas, world.job.max_replicas) = (2, 2);
    (world.job.spares, world.job.min_replicas) = (0, 1);
    world.settle();
    assert_eq!((world.generation(), members(&world)), (2, vec![0, 1]));
    world.ends(0, 137, 40);
    world.settle();
    assert_eq!(world.generation(), 2);
    let mut formed = world.clone();
    formed.observed.formed = Some(2);
    formed.settle();
    assert_eq!((formed.generation(), members(&formed)), (3, vec![1]));
    world.seconds_pass(31);
    world.settle();
    assert_eq!((world.generation(), members(&world)), (3, vec![1]));
}

#[test]
fn wait_for_a_copy_ends_although_its_container_ends_again() {
    let mut world = trained(0, true);
    world.is_ready(0, false);
    for _ in 0..4 {
        world.ends(0, 137, 40);
        world.settle();
        assert_eq!(world.generation(), 1);
        world.restarts(0);
        world.seconds_pass(70);
    }
    world.seconds_pass(30);
    world.ends(0, 137, 40);
    world.settle();
    assert_eq!((world.generation(), members(&world)), (2, vec![1]));
}

#[test]
fn new_worker_waits_for_a_leaving_pod_that_saves_its_copy() {
    let mut world = trained(0, true);
    world.ends(0, 137, 40);
    world.settle();
    world.restarts(0);
    world.lingering = true;
    world.is_deleted(0);
    world.observed.pods[0].gone_by = Some(world.now + jiff::SignedDuration::from_secs(60));
    world.settle();
    assert_eq!(world.generation(), 1);
    world.seconds_pass(61);
    world.settle();
    assert_eq!((world.generation(), members(&world)), (2, vec![1]));
}

#[test]
fn replica_that_restarts_in_place_keeps_its_place() {
    let mut world = trained(0, true);
    world.job.procs_per_worker = 2;
    world.replica_dies(0, 137, 1, 40);
    world.settle();
    assert_eq!(world.generation(), 1);
    world.process_is_prepared(0);
    world.settle();
    assert_eq!((world.generation(), members(&world)), (2, vec![0]));
}

#[test]
fn worker_with_a_copy_stays_when_fewer_are_wanted() {
    for at in 0..2 {
        let mut world = trained(at, true);
        world.ends(at, 137, 40);
        world.restarts(at);
        world.seconds_pass(1);
        world.prepared(at);
        world.job.spares = 0;
        world.settle();
        let left: Vec<_> = world.observed.pods.iter().map(|pod| pod.index).collect();
        assert_eq!(left, [u32::try_from(at).ok()]);
    }
}
