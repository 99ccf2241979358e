//! Jobs in restart mode: scripts without knowledge of generations.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use roundhouse_api::SuccessPolicy;
use roundhouse_planner::testing::script_world;
use roundhouse_planner::{Action, PlanReason, PodPhase};

#[test]
fn a_killed_worker_is_one_incident_whatever_becomes_of_the_others() {
    let mut world = script_world(3).training();
    world.job.min_replicas = 2;
    world.ends(1, 137, 40);
    world.settle();
    assert_eq!(world.generations(), [2, 1, 2]);
    // Its peers noticed, waited, and heard of generation 2: their containers run on.
    assert_eq!(world.observed.status.incidents.total, 1);
    world.restarts(1);
    world.prepared(1);
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!(world.generations(), [3, 3, 3]);
    assert_eq!(world.observed.status.incidents.total, 1);
}

#[test]
fn workers_that_all_fail_by_the_same_error_are_one_incident() {
    let mut world = script_world(3).training();
    for at in 0..3 {
        world.ends(at, 1, 40);
        world.settle();
    }
    assert_eq!(world.observed.status.incidents.total, 1);
    for at in 0..3 {
        world.restarts(at);
        world.prepared(at);
    }
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!(world.generations(), [2, 2, 2]);
    assert_eq!(world.observed.status.incidents.total, 1);
}

#[test]
fn the_job_succeeds_when_all_members_have_completed_however_long_the_last_one_takes() {
    let mut world = script_world(2).training();
    world.ends(1, 0, 100);
    assert_eq!(world.settle().reason, PlanReason::Finishing);
    world.seconds_pass(3_600);
    assert_eq!(world.settle().reason, PlanReason::Finishing);
    world.ends(0, 0, 100);
    assert_eq!(world.settle().reason, PlanReason::Succeeded);
}

#[test]
fn with_rank_zero_the_job_succeeds_when_the_worker_of_rank_0_completes() {
    for (first, reason) in [(0, PlanReason::Succeeded), (1, PlanReason::Finishing)] {
        let mut world = script_world(2).training();
        world.job.success_policy = SuccessPolicy::RankZero;
        world.ends(first, 0, 100);
        assert_eq!(world.settle().reason, reason);
    }
    // What becomes of the others at the same moment does not matter any more.
    let mut world = script_world(3).training();
    world.job.success_policy = SuccessPolicy::RankZero;
    world.ends(1, 1, 100);
    world.ends(0, 0, 100);
    assert_eq!(world.settle().reason, PlanReason::Succeeded);
    assert_eq!(world.observed.status.incidents.total, 0);
    let message = &world.observed.status.front().unwrap().message;
    assert_eq!(message, "rank 0 completed");
    let runs = |phase| matches!(phase, PodPhase::Pending | PodPhase::Running);
    assert!(!world.observed.pods.iter().any(|pod| runs(pod.phase)));
}

#[test]
fn rank_0_of_an_older_generation_ends_nothing() {
    let mut world = script_world(2).training();
    world.job.success_policy = SuccessPolicy::RankZero;
    // Worker 0 is cut off, and the other one was told to train without it.
    world
        .observed
        .status
        .membership
        .as_mut()
        .unwrap()
        .generation = 2;
    let told = world.observed.pods[1].membership.as_mut().unwrap();
    (told.generation, told.node_rank) = (2, 0);
    world.ends(0, 0, 100);
    assert_ne!(world.plan().reason, PlanReason::Succeeded);
    world.ends(1, 0, 100);
    assert_eq!(world.plan().reason, PlanReason::Succeeded);
}

#[test]
fn a_completed_worker_is_brought_back_even_if_a_sidecar_keeps_its_pod_running() {
    let mut world = script_world(2).training();
    world.ends(1, 0, 100);
    world.observed.pods[1].phase = PodPhase::Running;
    world.observed.pods[1].sidecar_runs = true;
    assert_eq!(world.settle().reason, PlanReason::Finishing);
    world.ends(0, 1, 100);
    world.settle();
    let names: Vec<_> = world.observed.pods.iter().map(|pod| &pod.name).collect();
    assert_eq!(names, ["gpt-worker-0-0", "gpt-worker-1-1"]);
}

#[test]
fn a_worker_that_fails_after_another_has_completed_brings_it_back() {
    let mut world = script_world(2).training();
    world.ends(1, 0, 100);
    world.settle();
    world.ends(0, 1, 100);
    let plan = world.plan();
    assert_eq!(plan.status.incidents.total, 1);
    world.carry_out(&plan, usize::MAX);
    let anew = Action::CreateWorker {
        index: 1,
        attempt: 1,
        avoid: Vec::new(),
        lost: Vec::new(),
        built_like: world.observed.pods[0].built_from.clone(),
    };
    assert!(world.plan().actions.contains(&anew));
    world.settle();
    world.restarts(0);
    for at in 0..world.observed.pods.len() {
        world.prepared(at);
    }
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!(world.generations(), [2, 2]);
    world.ends(0, 0, 100);
    world.ends(1, 0, 100);
    assert_eq!(world.settle().reason, PlanReason::Succeeded);
}

#[test]
fn a_script_that_does_not_end_is_ended_by_a_suspension_or_by_the_deadline() {
    let ending = || {
        let mut world = script_world(2).training();
        world.ends(0, 0, 100);
        assert_eq!(world.settle().reason, PlanReason::Finishing);
        world
    };
    let mut suspended = ending();
    suspended.job.suspend = true;
    suspended.settle();
    assert_eq!(suspended.state(), "Suspended");
    let mut late = ending();
    late.job.active_deadline = Some(Duration::from_secs(60));
    let plan = late.settle();
    assert!(plan.requeue_after.is_some(), "it wakes at the deadline");
    late.seconds_pass(61);
    late.settle();
    assert_eq!(late.state(), "DeadlineExceeded");
}

#[test]
fn once_a_worker_has_completed_no_worker_is_taken_away() {
    let mut world = script_world(3).training();
    world.ends(0, 0, 100);
    world.ends(1, 0, 100);
    world.job.replicas = 2;
    world.settle();
    assert_eq!(world.observed.pods.len(), 3);
    assert_eq!(world.generations(), [1, 1, 1]);
    world.ends(2, 0, 100);
    world.settle();
    assert_eq!(world.state(), "Completed");
}

#[test]
fn a_suspended_script_is_not_told_that_it_begins_anew() {
    let mut world = script_world(2).training();
    world.job.suspend = true;
    world.settle();
    let words = &world.observed.status.front().unwrap().message;
    assert!(!words.contains("step 0"), "{words}");
}

#[test]
fn what_comes_of_an_incident_does_not_hide_its_cause() {
    let mut world = script_world(3).training();
    for at in [2, 0, 1] {
        world.seconds_pass(1);
        world.ends(at, 1, 40);
        world.settle();
    }
    for at in 0..3 {
        world.restarts(at);
        world.prepared(at);
    }
    assert_eq!(world.settle().reason, PlanReason::Training);
    let last = world.observed.status.last_failure.as_ref().unwrap();
    assert_eq!(last.worker, "gpt-worker-2-0");
    assert_eq!(world.observed.status.incidents.total, 1);
}
