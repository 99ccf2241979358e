//! Jobs in restart mode: scripts without knowledge of generations.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use roundhouse_api::SuccessPolicy;
use roundhouse_contract::Progress;
use roundhouse_planner::testing::script_world;
use roundhouse_planner::{Action, PlanReason, PodPhase, ProgressSample};

#[test]
fn killed_worker_is_one_incident() {
    let mut world = script_world(3).training();
    world.job.min_replicas = 2;
    world.ends(1, 137, 40);
    world.settle();
    assert_eq!(world.generations(), [2, 1, 2]);
    // Its peers noticed the loss, waited, and received generation 2: their containers continue.
    assert_eq!(world.observed.status.incidents.total, 1);
    world.restarts(1);
    world.prepared(1);
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!(world.generations(), [3, 3, 3]);
    assert_eq!(world.observed.status.incidents.total, 1);
}

#[test]
fn same_error_of_all_workers_is_one_incident() {
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
fn script_succeeds_when_all_members_complete() {
    let mut world = script_world(2).training();
    world.ends(1, 0, 100);
    assert_eq!(world.settle().reason, PlanReason::Finishing);
    world.seconds_pass(3_600);
    assert_eq!(world.settle().reason, PlanReason::Finishing);
    world.ends(0, 0, 100);
    assert_eq!(world.settle().reason, PlanReason::Succeeded);
}

#[test]
fn rank_zero_policy_succeeds_with_rank_0() {
    for (first, reason) in [(0, PlanReason::Succeeded), (1, PlanReason::Finishing)] {
        let mut world = script_world(2).training();
        world.job.success_policy = SuccessPolicy::RankZero;
        world.ends(first, 0, 100);
        assert_eq!(world.settle().reason, reason);
    }
    // The fate of the others at the same moment does not matter.
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
fn message_of_a_completed_script_claims_no_unknown_step() {
    for (step, total_steps, expected) in [
        (
            103,
            240,
            "2 workers completed; the last step that the script reported was 103 of 240",
        ),
        (
            103,
            0,
            "2 workers completed; the last step that the script reported was 103",
        ),
        (240, 240, "2 workers completed 240 steps"),
        (0, 240, "2 workers completed"),
    ] {
        let mut world = script_world(2).training();
        let progress = Progress {
            generation: 1,
            step,
            total_steps,
            ..Progress::default()
        };
        let at = world.now;
        world.observed.progress = Some(ProgressSample { progress, at });
        world.ends(0, 0, step);
        world.ends(1, 0, step);
        assert_eq!(world.settle().reason, PlanReason::Succeeded);
        let message = &world.observed.status.front().unwrap().message;
        assert_eq!(message, expected);
    }
}

#[test]
fn rank_0_of_an_older_generation_is_ignored() {
    let mut world = script_world(2).training();
    world.job.success_policy = SuccessPolicy::RankZero;
    // Worker 0 is cut off, and the other worker got a generation without it.
    world
        .observed
        .status
        .membership
        .as_mut()
        .unwrap()
        .generation = 2;
    let place = world.observed.pods[1].membership.as_mut().unwrap();
    (place.generation, place.node_rank) = (2, 0);
    world.ends(0, 0, 100);
    assert_ne!(world.plan().reason, PlanReason::Succeeded);
    world.ends(1, 0, 100);
    assert_eq!(world.plan().reason, PlanReason::Succeeded);
}

#[test]
fn completed_worker_with_a_sidecar_is_replaced() {
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
fn failure_after_a_completion_replaces_the_completed() {
    let mut world = script_world(2).training();
    world.ends(1, 0, 100);
    world.settle();
    world.ends(0, 1, 100);
    let plan = world.plan();
    assert_eq!(plan.status.incidents.total, 1);
    world.carry_out(&plan, usize::MAX);
    let replacement = Action::CreateWorker {
        index: 1,
        attempt: 1,
        replica: None,
        gang: 0,
        avoid: Vec::new(),
        lost: Vec::new(),
        built_like: world.observed.pods[0].built_from.clone(),
    };
    assert!(world.plan().actions.contains(&replacement));
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
fn suspension_or_deadline_ends_a_script_that_never_ends() {
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
fn scale_down_after_a_completion_removes_no_worker() {
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
fn suspended_script_does_not_mention_step_0() {
    let mut world = script_world(2).training();
    world.job.suspend = true;
    world.settle();
    let words = &world.observed.status.front().unwrap().message;
    assert!(!words.contains("step 0"), "{words}");
}

#[test]
fn consequences_of_an_incident_do_not_hide_its_cause() {
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
