//! Jobs that are suspended and resumed.

use std::time::Duration;

use roundhouse_api::ConditionType;
use roundhouse_planner::testing::{World, world};
use roundhouse_planner::{Action, DeleteReason, MAX_ACTIONS, PlanReason, Presence};

/// A job whose two workers train.
fn trains() -> World {
    world(2).training()
}

#[test]
fn job_created_suspended_creates_no_objects() {
    let mut world = world(2);
    world.job.suspend = true;
    let plan = world.settle();
    assert!(world.observed.pods.is_empty());
    assert_eq!(world.observed.service, Presence::Missing);
    assert_eq!(
        (plan.reason, plan.requeue_after),
        (PlanReason::Suspended, None)
    );
    let status = &world.observed.status;
    assert!(status.is_true(ConditionType::Accepted) && status.start_time.is_none());
    assert!(status.is_true(ConditionType::Suspended));
}

#[test]
fn suspension_deletes_pods_and_keeps_service_and_policy() {
    let mut world = trains();
    world.job.suspend = true;
    let plan = world.plan();
    let deleted = plan.actions.iter().filter(|action| {
        let reason = DeleteReason::Suspended;
        matches!(action, Action::DeletePod { reason: r, .. } if *r == reason)
    });
    assert_eq!((deleted.count(), plan.actions.len()), (2, 2));
    assert_eq!(world.settle().requeue_after, None);
    assert_eq!(world.state(), "Suspended");
    assert!(!world.observed.status.is_true(ConditionType::Running));
    assert_eq!(world.observed.service, Presence::Ours);
    assert_eq!(world.generation(), 1);
    assert_eq!(
        (
            world.observed.status.replicas,
            world.observed.status.incidents.total
        ),
        (0, 0)
    );
}

#[test]
fn exits_of_a_suspended_job_are_no_incidents() {
    for code in [143, 137, 75, 64] {
        let mut world = trains();
        (world.lingering, world.job.suspend) = (true, true);
        world.settle();
        world.ends(0, code, 40);
        world.settle();
        world.vanishes(0);
        world.vanishes(0);
        world.job.suspend = false;
        world.settle();
        assert_eq!(world.observed.status.incidents.total, 0, "{code}");
        assert_eq!(world.state(), "WaitingForWorkers", "{code}");
    }
}

#[test]
fn terminating_pods_count_until_they_are_gone() {
    let mut world = trains();
    (world.lingering, world.job.suspend) = (true, true);
    world.settle();
    let pods = |world: &World| world.observed.status.workers.as_ref().unwrap().pods;
    assert_eq!(pods(&world), 2);
    world.observed.pods[0].unreachable = true;
    world.settle();
    assert_eq!(pods(&world), 1);
    world.vanishes(1);
    world.settle();
    assert_eq!(pods(&world), 0);
}

#[test]
fn resumed_job_has_new_workers_in_the_next_generation() {
    let mut world = trains();
    world.job.suspend = true;
    world.settle();
    world.job.suspend = false;
    world.settle();
    for at in 0..2 {
        world.prepared(at);
    }
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!(world.generations(), [2, 2]);
    assert!(!world.observed.status.is_true(ConditionType::Suspended));
}

#[test]
fn resumption_waits_for_the_grace_of_leaving_workers() {
    let mut world = trains();
    (world.lingering, world.job.suspend) = (true, true);
    world.settle();
    world.job.suspend = false;
    let plan = world.settle();
    assert_eq!(plan.reason, PlanReason::Resuming);
    assert_eq!(plan.requeue_after, Some(Duration::from_secs(30)));
    assert!(plan.actions.is_empty());
    let mut gone = world.clone();
    gone.vanishes(0);
    gone.vanishes(0);
    gone.settle();
    assert_eq!(gone.observed.pods.len(), 2);
    assert_eq!(gone.observed.pods[0].attempt, 0);
    let mut lost = world.clone();
    for at in 0..2 {
        lost.is_unreachable(at, true);
    }
    lost.settle();
    assert_eq!(
        lost.state(),
        "WaitingForWorkers",
        "a lost node is not waited for"
    );
    world.seconds_pass(30);
    world.settle();
    let fresh: Vec<_> = world
        .observed
        .pods
        .iter()
        .filter(|pod| !pod.deleting)
        .collect();
    assert_eq!(
        fresh.len(),
        2,
        "a pod that never goes does not hold the job up"
    );
    assert!(fresh.iter().all(|pod| pod.attempt == 1));
}

#[test]
fn next_operator_completes_a_partial_suspension() {
    for writes in 0..2 {
        let mut world = trains();
        world.job.suspend = true;
        let plan = world.plan();
        world.carry_out(&plan, writes);
        world.settle();
        assert!(world.observed.pods.is_empty());
        assert_eq!(world.state(), "Suspended");
    }
}

#[test]
fn cancelled_partial_suspension_keeps_the_other_workers() {
    let mut world = trains();
    world.job.min_replicas = 1;
    world.job.suspend = true;
    let plan = world.plan();
    world.carry_out(&plan, 1);
    world.job.suspend = false;
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!(world.observed.status.incidents.total, 0);
}

#[test]
fn start_deadline_restarts_with_the_resumption() {
    let mut world = trains();
    world.job.start_deadline = Some(Duration::from_secs(600));
    world.job.suspend = true;
    world.settle();
    world.seconds_pass(10_000);
    world.job.suspend = false;
    let plan = world.settle();
    assert_eq!(plan.requeue_after, world.job.start_deadline);
    world.seconds_pass(600);
    world.settle();
    assert_eq!(world.state(), "StartDeadlineExceeded");
}

#[test]
fn suspended_time_is_not_active_time() {
    let mut world = trains();
    world.job.active_deadline = Some(Duration::from_secs(100));
    world.seconds_pass(60);
    world.job.suspend = true;
    world.settle();
    world.seconds_pass(10_000);
    assert_eq!(world.settle().requeue_after, None);
    world.job.suspend = false;
    world.settle();
    for at in 0..2 {
        world.prepared(at);
    }
    assert_eq!(world.settle().requeue_after, Some(Duration::from_secs(40)));
    world.seconds_pass(40);
    world.settle();
    assert_eq!(world.state(), "DeadlineExceeded");
    assert!(world.observed.pods.is_empty());
}

#[test]
fn large_job_is_suspended_in_several_plans() {
    let mut world = world(400).training();
    assert_eq!(world.state(), "Training");
    world.job.suspend = true;
    assert_eq!(world.plan().actions.len(), MAX_ACTIONS);
    world.settle();
    assert!(world.observed.pods.is_empty());
}

#[test]
fn job_that_completes_during_suspension_succeeds() {
    let mut world = trains();
    for at in 0..2 {
        world.ends(at, 0, 100);
    }
    world.job.suspend = true;
    world.settle();
    assert_eq!(world.state(), "Completed");
}
