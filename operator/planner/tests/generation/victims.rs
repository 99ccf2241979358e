//! Which workers leave when fewer are wanted, and which are created when more are.

use std::time::Duration;

use roundhouse_contract::{Progress, Straggler};
use roundhouse_planner::testing::{World, world};
use roundhouse_planner::{Action, DeleteReason, Plan, PlanReason, ProgressSample};

/// This number of workers train; one is enough.
fn trains(workers: u32) -> World {
    let mut world = world(workers);
    world.job.min_replicas = 1;
    let mut world = world.training();
    for at in 0..workers as usize {
        world.is_on(at, &format!("n{at}"));
    }
    world
}

fn deleted(plan: &Plan) -> Vec<(String, DeleteReason)> {
    let deleted = |action: &Action| match action {
        Action::DeletePod { pod, reason, .. } => Some((pod.clone(), *reason)),
        _ => None,
    };
    plan.actions.iter().filter_map(deleted).collect()
}

fn created(plan: &Plan) -> Vec<(u32, u32)> {
    let created = |action: &Action| match action {
        Action::CreateWorker { index, attempt, .. } => Some((*index, *attempt)),
        _ => None,
    };
    plan.actions.iter().filter_map(created).collect()
}

fn indices(world: &World) -> Vec<u32> {
    let alive = world.observed.pods.iter().filter(|pod| !pod.deleting);
    let mut indices: Vec<_> = alive.map(|pod| pod.index.unwrap()).collect();
    indices.sort_unstable();
    indices
}

/// Rank 0 reports the straggler of a generation.
fn straggles(world: &mut World, generation: u64, node_rank: u32) {
    let progress = Progress {
        generation,
        step: 40,
        straggler: Some(Straggler {
            node_rank,
            factor: 2.3,
        }),
        ..Progress::default()
    };
    let at = world.now;
    world.observed.progress = Some(ProgressSample { progress, at });
}

fn swap_places(world: &mut World, one: usize, other: usize) {
    let place = |at: usize| {
        world.observed.pods[at]
            .membership
            .as_ref()
            .unwrap()
            .node_rank
    };
    let (first, second) = (place(one), place(other));
    for (at, place) in [(one, second), (other, first)] {
        let document = world.observed.pods[at].membership.as_mut();
        document.unwrap().node_rank = place;
    }
}

#[test]
fn scale_down_follows_the_documented_order() {
    type Change = fn(&mut World);
    let cases: [(&str, Change, [u32; 3]); 10] = [
        ("all alike", |_| (), [0, 1, 2]),
        (
            "a cordoned node",
            |w| w.observed.pods[1].cordoned = true,
            [0, 2, 3],
        ),
        (
            "a node that does not answer",
            |w| w.is_unreachable(0, true),
            [1, 2, 3],
        ),
        (
            "a newcomer",
            |w| w.observed.pods[2].membership = None,
            [0, 1, 3],
        ),
        (
            "a cordoned member before a newcomer",
            |w| {
                w.observed.pods[0].cordoned = true;
                w.observed.pods[2].membership = None;
            },
            [1, 2, 3],
        ),
        ("a straggler", |w| straggles(w, 1, 1), [0, 2, 3]),
        (
            "a straggler by its place, whatever its index",
            |w| {
                straggles(w, 1, 1);
                swap_places(w, 0, 1);
            },
            [1, 2, 3],
        ),
        (
            "a straggler of a generation that is over",
            |w| straggles(w, 0, 1),
            [0, 1, 2],
        ),
        (
            "a cordoned node before a straggler",
            |w| {
                straggles(w, 1, 1);
                w.observed.pods[2].cordoned = true;
            },
            [0, 1, 3],
        ),
        (
            "a newcomer before a straggler",
            |w| {
                straggles(w, 1, 1);
                w.observed.pods[2].membership = None;
            },
            [0, 1, 3],
        ),
    ];
    for (name, change, left) in cases {
        let mut world = trains(4);
        change(&mut world);
        world.job.replicas = 3;
        let plan = world.plan();
        assert_eq!(deleted(&plan).len(), 1, "{name}");
        assert!(created(&plan).is_empty(), "{name}");
        world.settle();
        assert_eq!(indices(&world), left, "{name}");
        assert_eq!(world.observed.status.incidents.total, 0, "{name}");
    }
}

#[test]
fn new_workers_take_the_lowest_free_index() {
    let mut world = trains(4);
    world.observed.pods[1].cordoned = true;
    world.job.replicas = 3;
    world.settle();
    assert_eq!(indices(&world), [0, 2, 3]);
    world.job.replicas = 5;
    assert_eq!(created(&world.plan()), [(1, 0), (4, 0)]);
    world.settle();
    assert_eq!(indices(&world), [0, 1, 2, 3, 4]);
}

#[test]
fn cordon_alone_removes_no_worker() {
    let mut world = trains(2);
    world.observed.pods[0].cordoned = true;
    let plan = world.settle();
    assert_eq!(plan.reason, PlanReason::Training);
    assert_eq!(
        (indices(&world), plan.requeue_after),
        (vec![0, 1], None::<Duration>)
    );
}
