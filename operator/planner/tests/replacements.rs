//! When a worker's pod is replaced by its next attempt, and which pods go when fewer are wanted.
#![allow(missing_docs, clippy::unwrap_used)]

use std::time::Duration;

use jiff::SignedDuration;
use roundhouse_contract::{Action as Instruction, Progress, Straggler};
use roundhouse_planner::testing::{World, world};
use roundhouse_planner::{Action, DeleteReason, Plan, PlanReason, PodPhase, ProgressSample};

/// So many workers train; one is enough.
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

/// Rank 0 tells of a worker that the others of a generation wait for.
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
fn a_node_that_refuses_pods_is_asked_less_and_less_often() {
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
fn a_node_whose_clock_is_ahead_is_asked_less_and_less_often_like_any_other() {
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
fn a_pod_that_lived_long_is_replaced_at_once() {
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
fn the_replacement_of_a_lost_worker_prefers_other_nodes_although_the_scheduler_may_not_know_yet() {
    let mut world = trains(3);
    world.observed.pods[1].node = Some("n1".into());
    world.is_unreachable(1, true);
    let lost = world.plan().actions.into_iter().find_map(|it| match it {
        Action::CreateWorker { index: 1, lost, .. } => Some(lost),
        _ => None,
    });
    assert_eq!(lost.unwrap(), ["n1"]);
}

#[test]
fn survivors_of_a_lost_node_go_on_at_once_and_the_lost_worker_is_replaced() {
    let mut world = trains(3);
    world.lingering = true;
    // It is long since their generation was issued.
    world.seconds_pass(60);
    world.is_unreachable(1, true);
    let plan = world.plan();
    assert_eq!(created(&plan), [(1, 1)]);
    let expected = ("digits-worker-1-0".to_owned(), DeleteReason::NodeLost);
    assert_eq!(deleted(&plan), [expected]);
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!(world.observed.status.membership.as_ref().unwrap().nodes, 2);
    assert_eq!(world.observed.status.incidents.total, 0);
}

#[test]
fn a_worker_that_prepares_on_a_lost_node_is_replaced_like_one_that_trains() {
    for phase in [PodPhase::Pending, PodPhase::Running] {
        let mut world = world(2);
        world.settle();
        for at in 0..2 {
            world.is_on(at, &format!("n{at}"));
        }
        world.prepared(0);
        world.observed.pods[1].phase = phase;
        world.seconds_pass(60);
        let waits = world.settle();
        assert_eq!(waits.reason, PlanReason::WaitingForWorkers);
        world.is_unreachable(1, true);
        world.observed.pods[1].ready = false;
        let plan = world.plan();
        assert_eq!(created(&plan), [(1, 1)]);
        let expected = ("digits-worker-1-0".to_owned(), DeleteReason::NodeLost);
        assert_eq!(deleted(&plan), [expected]);
        world.settle();
        world.prepared(1);
        assert_eq!(world.settle().reason, PlanReason::Training);
        assert_eq!(world.observed.status.incidents.total, 0);
    }
}

/// Nodes of these workers are lost, as the node lifecycle controller tells it.
fn nodes_are_lost(world: &mut World, workers: impl IntoIterator<Item = usize>) {
    for at in workers {
        world.is_unreachable(at, true);
        world.observed.pods[at].ready_at = Some(world.now);
    }
}

/// How many pods are made a number of seconds after nodes were lost.
fn replaced_after(mut world: World, seconds: i64) -> usize {
    world.seconds_pass(seconds);
    let plan = world.plan();
    assert_eq!(deleted(&plan).len(), created(&plan).len());
    created(&plan).len()
}

#[test]
fn a_worker_on_a_lost_node_is_replaced_after_a_minute_and_one_of_an_outage_after_five() {
    // Workers on nodes of their own, how many of these are lost, and after how many seconds they are replaced.
    for (workers, lost, after) in [
        (6, 1, 60),
        (6, 2, 60),
        (6, 3, 300),
        (2, 1, 60),
        (10, 4, 300),
    ] {
        let mut world = trains(workers);
        world.observed.formed = Some(1);
        world.seconds_pass(60);
        nodes_are_lost(&mut world, 0..lost);
        assert_eq!(world.settle().reason, PlanReason::Training);
        let case = format!("{lost} of {workers}");
        assert_eq!(replaced_after(world.clone(), after - 1), 0, "{case}");
        assert_eq!(replaced_after(world, after), lost, "{case}");
    }
}

#[test]
fn a_worker_on_a_lost_node_is_replaced_as_soon_as_the_operator_is_set_to() {
    let mut world = trains(3);
    world.observed.formed = Some(1);
    world.observed.lost_node_grace = Some(Duration::from_secs(10));
    world.seconds_pass(60);
    nodes_are_lost(&mut world, [1]);
    world.settle();
    assert_eq!(replaced_after(world.clone(), 9), 0);
    assert_eq!(replaced_after(world, 10), 1);
}

#[test]
fn one_lost_node_is_no_outage_however_many_workers_it_had() {
    let mut world = trains(4);
    for at in 0..3 {
        world.is_on(at, "n0");
    }
    nodes_are_lost(&mut world, 0..3);
    world.settle();
    assert_eq!(replaced_after(world, 60), 3);
}

#[test]
fn a_node_that_blinks_costs_no_pod() {
    // Whether the node itself says that it is not ready, for how long, and whether its worker keeps its pod.
    for (answers, seconds, stays) in [
        (false, 59, true),
        (false, 60, false),
        (true, 299, true),
        (true, 300, false),
    ] {
        let mut world = trains(3);
        world.observed.formed = Some(1);
        nodes_are_lost(&mut world, [1]);
        world.observed.pods[1].node_answers = answers;
        let plan = world.settle();
        assert!(
            plan.requeue_after
                .is_some_and(|after| after.as_secs() <= 300)
        );
        assert_eq!(
            world.observed.status.membership.as_ref().unwrap().nodes,
            2,
            "out at once"
        );
        world.seconds_pass(seconds);
        world.settle();
        let is_there = world
            .observed
            .pods
            .iter()
            .any(|pod| pod.name == "digits-worker-1-0");
        assert_eq!(is_there, stays, "{answers} {seconds}");
        if let Some(at) = world.observed.pods.iter().position(|pod| pod.unreachable) {
            world.is_unreachable(at, false);
            assert_eq!(world.settle().reason, PlanReason::Training);
            assert_eq!(
                world.observed.status.membership.as_ref().unwrap().nodes,
                3,
                "taken back"
            );
        }
        assert_eq!(world.observed.status.incidents.total, 0);
    }
}

#[test]
fn workers_of_an_outage_that_come_back_in_time_train_on() {
    let mut world = trains(4);
    world.seconds_pass(60);
    nodes_are_lost(&mut world, 0..2);
    world.settle();
    for at in 0..2 {
        world.is_unreachable(at, false);
    }
    world.settle();
    assert_eq!(world.state(), "Training");
    assert_eq!(world.observed.status.membership.as_ref().unwrap().nodes, 4);
    assert!(world.observed.pods.iter().all(|pod| pod.attempt == 0));
}

#[test]
fn a_lost_worker_is_never_taken_in_again_when_its_node_heals() {
    let mut world = trains(3);
    world.lingering = true;
    world.is_unreachable(1, true);
    world.settle();
    world.is_unreachable(1, false);
    world.settle();
    let old = &world.observed.pods[1];
    let document = old.membership.as_ref().unwrap();
    assert!(old.deleting);
    assert!(document.generation == 1 || document.action == Instruction::Leave);
    world.prepared(3);
    world.settle();
    assert_eq!(world.observed.status.membership.as_ref().unwrap().nodes, 3);
    assert_eq!(world.observed.pods[3].name, "digits-worker-1-1");
}

#[test]
fn when_no_node_answers_nothing_is_taken_away() {
    let mut world = trains(2);
    for at in 0..2 {
        world.is_unreachable(at, true);
    }
    let plan = world.settle();
    assert_eq!(world.state(), "NodeUnreachable");
    assert!(deleted(&plan).is_empty());
    for at in 0..2 {
        world.is_unreachable(at, false);
    }
    world.settle();
    assert_eq!(world.state(), "Training");
    assert_eq!(world.generations(), [1, 1], "they had gone on all the time");
}

#[test]
fn a_pod_that_never_goes_does_not_hold_up_its_replacement() {
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
fn fewer_workers_leave_out_cordoned_nodes_then_newcomers_then_the_straggler_then_the_highest_index()
{
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
fn new_workers_fill_the_lowest_hole() {
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
fn a_cordon_alone_changes_nothing() {
    let mut world = trains(2);
    world.observed.pods[0].cordoned = true;
    let plan = world.settle();
    assert_eq!(plan.reason, PlanReason::Training);
    assert_eq!(
        (indices(&world), plan.requeue_after),
        (vec![0, 1], None::<Duration>)
    );
}
