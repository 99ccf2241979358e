//! What goes wrong around a job, and must cost no more than it has to. docs/cases.md has the whole list.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use roundhouse_planner::testing::{World, world};
use roundhouse_planner::{Action, PlanReason, Pod, PodPhase, Presence};

fn trains(workers: u32) -> World {
    let mut world = world(workers);
    world.job.min_replicas = 1;
    world.training()
}

fn num_created(world: &World) -> usize {
    let actions = world.plan().actions;
    let created = |action: &&Action| matches!(action, Action::CreateWorker { .. });
    actions.iter().filter(created).count()
}

#[test]
fn pods_of_an_earlier_job_of_the_same_name_are_not_adopted() {
    let mut world = world(1);
    let theirs = Pod {
        name: "digits-worker-0-0".into(),
        uid: "theirs".into(),
        index: Some(0),
        phase: PodPhase::Running,
        ready: true,
        ..Pod::default()
    };
    world.observed.pods.push(theirs);
    world.settle();
    let names = |world: &World| -> Vec<String> {
        let pods = world.observed.pods.iter();
        pods.map(|pod| pod.name.clone()).collect()
    };
    let expected = ["digits-worker-0-0", "digits-worker-0-1"];
    assert_eq!(names(&world), expected, "the worker takes its next attempt");
    assert_eq!(world.state(), "WaitingForWorkers");
    world.prepared(1);
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert!(world.observed.pods[0].membership.is_none());
}

#[test]
fn a_pod_of_another_owner_that_is_not_watched_costs_an_attempt() {
    let mut world = world(2);
    world.observed.taken = vec![
        "Pod digits-worker-1-0".into(),
        "Pod digits-worker-1-1".into(),
    ];
    let created = world.plan().actions.into_iter().filter_map(|it| match it {
        Action::CreateWorker { index, attempt, .. } => Some((index, attempt)),
        _ => None,
    });
    assert_eq!(created.collect::<Vec<_>>(), [(0, 0), (1, 2)]);
}

#[test]
fn an_edited_attempt_label_does_not_ask_for_a_name_that_exists() {
    let mut world = trains(2);
    world.observed.pods[1].attempt = u32::MAX;
    world.is_deleted(1);
    world.lingering = true;
    world.settle();
    assert_eq!(world.observed.pods.len(), 3);
    assert_eq!(world.observed.pods[2].name, "digits-worker-1-1");
}

#[test]
fn a_taken_name_keeps_a_job_that_trains_from_nothing_but_making_pods() {
    let mut world = trains(3);
    world.observed.service = Presence::Foreign;
    world.ends(0, 137, 40);
    world.settle();
    let status = &world.observed.status;
    assert_eq!((world.state(), status.incidents.total), ("Training", 1));
    assert_eq!(status.membership.as_ref().unwrap().nodes, 2);
    let message = &status.front().unwrap().message;
    assert!(message.contains("Service digits exists"), "{message}");
    world.vanishes(0);
    assert_eq!(num_created(&world), 0);
    world.job.replicas = 1;
    world.settle();
    assert_eq!(world.observed.pods.len(), 1, "what is too much goes");
}

#[test]
fn a_start_deadline_tells_which_name_was_taken() {
    let mut world = world(1);
    world.job.start_deadline = Some(Duration::from_secs(600));
    world.observed.service = Presence::Foreign;
    world.settle();
    world.seconds_pass(600);
    world.settle();
    let front = world.observed.status.front().unwrap();
    assert_eq!(front.reason, "StartDeadlineExceeded");
    assert!(front.message.contains("Service digits exists"), "{front:?}");
}

#[test]
fn a_pod_that_vanishes_is_replaced_and_the_others_go_on() {
    let mut world = trains(2);
    world.vanishes(0);
    assert_eq!(num_created(&world), 1);
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!(world.observed.status.incidents.total, 0);
}

#[test]
fn a_worker_that_never_came_does_not_hold_up_success() {
    let mut world = trains(2);
    world.job.replicas = 3;
    world.settle();
    world.observed.pods[2].unschedulable = Some("no room".into());
    for at in 0..2 {
        world.ends(at, 0, 100);
    }
    world.settle();
    assert_eq!(world.state(), "Completed");
    assert_eq!(world.observed.pods.len(), 2, "nothing keeps its room");
}

#[test]
fn an_incident_is_counted_once_wherever_the_operator_dies() {
    let mut world = trains(2);
    world.ends(0, 137, 40);
    let lost = world.plan();
    assert_eq!(lost.status.incidents.total, 1);
    // Nothing of that plan was written; the next operator sees the same.
    let again = world.plan();
    world.carry_out(&again, usize::MAX);
    world.settle();
    world.restarts(0);
    world.settle();
    world.prepared(0);
    world.settle();
    assert_eq!(world.observed.status.incidents.total, 1);
}

#[test]
fn a_failure_between_raising_and_issuing_a_generation_is_counted() {
    for new_worker_fails in [false, true] {
        let mut world = trains(2);
        world.job.replicas = 3;
        world.settle();
        world.prepared(2);
        let raise = world.plan();
        assert_eq!(raise.reason, PlanReason::RaisingGeneration);
        world.carry_out(&raise, usize::MAX);
        world.ends(if new_worker_fails { 2 } else { 0 }, 137, 40);
        let plan = world.settle();
        assert_eq!(plan.reason, PlanReason::Training);
        let status = &world.observed.status;
        assert_eq!(status.incidents.total, 1, "new worker: {new_worker_fails}");
        assert_eq!(status.last_failure.as_ref().unwrap().reason, "Crashed");
    }
}

#[test]
fn a_failed_job_is_cleaned_up_again_and_again_until_nothing_runs() {
    let mut world = trains(3);
    world.ends(0, 64, 0);
    let fail = world.plan();
    assert!(
        fail.actions.is_empty(),
        "the reason is stored before pods go"
    );
    world.carry_out(&fail, usize::MAX);
    let clean = world.plan();
    assert_eq!(clean.actions.len(), 3);
    world.carry_out(&clean, 1);
    assert_eq!(world.plan().actions.len(), 2);
    world.settle();
    assert!(world.observed.pods.is_empty());
    assert_eq!(world.state(), "ConfigInvalid");
}

#[test]
fn a_sidecar_does_not_decide_how_a_job_ends() {
    let mut world = trains(1);
    world.ends(0, 0, 100);
    world.observed.pods[0].phase = PodPhase::Running;
    world.observed.pods[0].sidecar_runs = true;
    world.settle();
    assert_eq!(world.state(), "Completed");
    assert!(
        world.observed.pods.is_empty(),
        "a sidecar would run for ever"
    );
}

#[test]
fn a_clock_that_runs_backwards_ends_nothing() {
    let mut world = world(1);
    world.job.active_deadline = Some(Duration::from_secs(100));
    world.seconds_pass(1_000);
    world.settle();
    world.seconds_pass(-900);
    let plan = world.settle();
    assert_eq!(world.state(), "WaitingForWorkers");
    assert!(plan.requeue_after.is_some());
}

#[test]
fn exit_of_a_worker_removed_by_scale_down_is_not_an_incident() {
    for code in [0, 1, 64, 75, 77, 137, 143] {
        let mut world = trains(3);
        world.lingering = true;
        world.job.replicas = 2;
        world.settle();
        let victim = world.observed.pods.iter().position(|pod| pod.deleting);
        world.ends(victim.unwrap(), code, 40);
        world.settle();
        assert_eq!(world.observed.status.incidents.total, 0, "{code}");
        assert!(world.observed.status.avoid_nodes.is_empty(), "{code}");
        assert_eq!(world.state(), "Training", "{code}");
    }
}
