//! Workers on nodes that do not answer.

use std::time::Duration;

use roundhouse_contract::Action as Instruction;
use roundhouse_planner::testing::{World, world};
use roundhouse_planner::{Action, DeleteReason, PlanReason, PodPhase};

use crate::{created, deleted, trains};

#[test]
fn replacement_of_a_lost_worker_prefers_other_nodes() {
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
fn survivors_of_a_lost_node_continue_at_once() {
    let mut world = trains(3);
    world.lingering = true;
    // Their generation was issued long ago.
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

/// The operator keeps in memory which agents are silent.
#[test]
fn restarted_operator_waits_for_unready_workers() {
    let mut world = trains(3);
    world.seconds_pass(60);
    world.agent_is_silent(1, true);
    world.settle();
    world.agent_is_silent(1, false);
    world.observed.pods[1].ready = false;
    world.observed.watched_since = Some(world.now);
    let plan = world.settle();
    assert_eq!(plan.reason, PlanReason::Training);
    assert_eq!(world.observed.status.membership.as_ref().unwrap().nodes, 2);
    assert!(plan.requeue_after.unwrap() <= Duration::from_secs(30));
    world.seconds_pass(31);
    world.settle();
    assert_eq!(world.observed.status.membership.as_ref().unwrap().nodes, 3);
}

#[test]
fn preparing_worker_on_a_lost_node_is_replaced() {
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

/// The nodes of these workers are lost, as the node lifecycle controller reports it.
fn nodes_are_lost(world: &mut World, workers: impl IntoIterator<Item = usize>) {
    for at in workers {
        world.is_unreachable(at, true);
        world.observed.pods[at].ready_at = Some(world.now);
    }
}

/// Number of pods that are created this number of seconds after nodes were lost.
fn replaced_after(mut world: World, seconds: i64) -> usize {
    world.seconds_pass(seconds);
    let plan = world.plan();
    assert_eq!(deleted(&plan).len(), created(&plan).len());
    created(&plan).len()
}

#[test]
fn lost_node_waits_one_minute_and_an_outage_five() {
    // Number of workers on separate nodes, number of lost nodes, and seconds until the replacement.
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
fn lost_node_grace_is_configurable() {
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
fn single_lost_node_is_not_an_outage() {
    let mut world = trains(4);
    for at in 0..3 {
        world.is_on(at, "n0");
    }
    nodes_are_lost(&mut world, 0..3);
    world.settle();
    assert_eq!(replaced_after(world, 60), 3);
}

#[test]
fn node_that_returns_keeps_its_pods() {
    // Whether the node itself reports that it is not ready, for how many seconds, and whether its
    // worker keeps its pod.
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
fn workers_that_return_after_an_outage_keep_training() {
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
fn replaced_worker_never_rejoins() {
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
fn no_worker_is_replaced_if_no_node_answers() {
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
