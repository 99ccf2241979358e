//! Completions outlive the pods that showed them: whatever deletes a node deletes its completed
//! pods.

use roundhouse_api::SuccessPolicy;
use roundhouse_planner::testing::{World, script_world, world};
use roundhouse_planner::{Action, Plan, PlanReason};

fn created(plan: &Plan) -> Vec<(u32, u32)> {
    let created = |action: &Action| match action {
        Action::CreateWorker { index, attempt, .. } => Some((*index, *attempt)),
        _ => None,
    };
    plan.actions.iter().filter_map(created).collect()
}

fn completed(world: &World) -> &str {
    let newest = world.observed.status.membership.as_ref().unwrap();
    &newest.completed
}

/// Workers 1 and 2 of three have completed, and both pods are gone. Rank 0 still exports the model.
fn collected(policy: SuccessPolicy) -> World {
    let mut world = script_world(3);
    world.job.success_policy = policy;
    let mut world = world.training();
    world.seconds_pass(3_600);
    world.ends(1, 0, 1_000);
    world.ends(2, 0, 1_000);
    assert_eq!(world.settle().reason, PlanReason::Finishing);
    assert_eq!(completed(&world), "1-2");
    world.vanishes(2);
    world.vanishes(1);
    world
}

#[test]
fn removed_pod_of_a_completed_worker_restarts_no_worker() {
    for policy in [SuccessPolicy::AllMembers, SuccessPolicy::RankZero] {
        let mut world = collected(policy);
        let plan = world.plan();
        assert_eq!(
            (plan.reason, created(&plan)),
            (PlanReason::Finishing, vec![])
        );
        world.seconds_pass(3_600);
        world.settle();
        assert_eq!((world.generation(), world.observed.pods.len()), (1, 1));
        assert_eq!(world.state(), "Finishing");
        world.ends(0, 0, 1_000);
        assert_eq!(world.settle().reason, PlanReason::Succeeded);
    }
}

#[test]
fn job_succeeds_if_pods_of_completed_workers_are_gone() {
    // The last completion is stored, and the operator stopped before it wrote the success of the
    // job.
    let mut script = collected(SuccessPolicy::AllMembers);
    let newest = script.observed.status.membership.as_mut().unwrap();
    newest.completed = "0-2".to_owned();
    let mut trainer = world(3).training();
    trainer.ends(1, 0, 100);
    trainer.settle();
    for mut world in [script, trainer] {
        world.observed.pods.clear();
        let plan = world.settle();
        assert_eq!(plan.reason, PlanReason::Succeeded);
        assert!(world.observed.pods.is_empty());
    }
}

#[test]
fn rank_zero_policy_succeeds_with_a_stored_completion() {
    let mut world = script_world(2);
    world.job.success_policy = SuccessPolicy::RankZero;
    let mut world = world.training();
    let newest = world.observed.status.membership.as_mut().unwrap();
    newest.completed = "0".to_owned();
    world.vanishes(0);
    assert_eq!(world.settle().reason, PlanReason::Succeeded);
}

#[test]
fn completed_worker_is_needed_again_if_another_fails() {
    let mut world = collected(SuccessPolicy::AllMembers);
    world.settle();
    world.ends(0, 1, 1_000);
    world.settle();
    let names: Vec<_> = world.observed.pods.iter().map(|pod| &*pod.name).collect();
    assert_eq!(
        names,
        ["gpt-worker-0-0", "gpt-worker-1-0", "gpt-worker-2-0"]
    );
    world.restarts(0);
    for at in 0..3 {
        world.prepared(at);
    }
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!((world.generation(), completed(&world)), (2, ""));
}

#[test]
fn completion_is_stored_before_pods_are_replaced() {
    let mut world = script_world(2).training();
    world.ends(1, 0, 100);
    world.ends(0, 1, 100);
    let plan = world.plan();
    assert!(created(&plan).is_empty(), "{:?}", plan.actions);
}

#[test]
fn scale_down_keeps_running_members_after_completions() {
    let mut world = script_world(4).training();
    world.ends(2, 0, 1_000);
    world.ends(3, 0, 1_000);
    world.settle();
    world.vanishes(3);
    world.vanishes(2);
    (world.job.replicas, world.job.min_replicas) = (1, 1);
    assert_eq!(world.settle().reason, PlanReason::Finishing);
    assert_eq!((world.generation(), world.observed.pods.len()), (1, 2));
}

#[test]
fn resumed_job_has_no_completions() {
    let mut world = collected(SuccessPolicy::AllMembers);
    world.job.suspend = true;
    world.settle();
    world.job.suspend = false;
    world.settle();
    assert_eq!(completed(&world), "");
    assert_eq!(world.observed.pods.len(), 3);
}

/// A finalizer, of Kueue or of a log collector, holds the pod of a completed worker.
#[test]
fn completed_pod_of_an_earlier_run_is_ignored() {
    let mut world = script_world(2).training();
    world.ends(1, 0, 100);
    world.settle();
    world.lingering = true;
    world.job.suspend = true;
    world.settle();
    world.observed.pods.retain(|pod| pod.index == Some(1));
    world.seconds_pass(100);
    world.settle();
    world.job.suspend = false;
    world.settle();
    for at in 1..world.observed.pods.len() {
        world.prepared(at);
    }
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!((world.generation(), world.state()), (2, "Training"));
    world.job.replicas = 3;
    world.job.max_replicas = 3;
    world.settle();
    let alive = world.observed.pods.iter().filter(|pod| !pod.deleting);
    assert_eq!(alive.count(), 3, "a third worker is made");
}
