//! Jobs whose pods are a group of Kueue.

use std::time::Duration;

use roundhouse_api::{CleanPodPolicy, SuccessPolicy};
use roundhouse_planner::Action;
use roundhouse_planner::testing::{World, script_world, world};

/// A job that trains as a group of Kueue.
fn grouped(world: World) -> World {
    let mut world = world.training();
    let meta = world.job.template.metadata.get_or_insert_default();
    let labels = meta.labels.get_or_insert_default();
    labels.insert(
        "kueue.x-k8s.io/pod-group-name".to_owned(),
        "digits".to_owned(),
    );
    for at in 0..world.observed.pods.len() {
        world.is_on(at, &format!("n{at}"));
    }
    world
}

fn creates(actions: &[Action]) -> usize {
    let creates = |action: &&Action| matches!(action, Action::CreateWorker { .. });
    actions.iter().filter(creates).count()
}

#[test]
fn kueue_group_never_exceeds_the_number_of_workers() {
    let mut leaves = grouped(world(2));
    leaves.is_deleted(1);
    assert_eq!(creates(&leaves.plan().actions), 0, "it still counts");
    leaves.vanishes(1);
    assert_eq!(creates(&leaves.plan().actions), 1);

    let mut failed = grouped(world(2));
    failed.fails(1, "Evicted");
    failed.observed.pods[1].disrupted = true;
    assert_eq!(creates(&failed.plan().actions), 1, "it does not count");

    let mut lost = grouped(world(2));
    lost.is_unreachable(1, true);
    let plan = lost.plan();
    let deletes = |action: &Action| matches!(action, Action::DeletePod { .. });
    assert!(plan.actions.iter().any(deletes), "{:?}", plan.actions);
    assert_eq!(creates(&plan.actions), 0);
    lost.settle();
    assert_eq!(lost.observed.pods.len(), 2, "the lost one is gone");
}

/// Kueue holds a deleted pod until its group ends, and counts it.
#[test]
fn full_kueue_group_is_reported() {
    let mut world = grouped(script_world(2));
    world.lingering = true;
    world.ends(1, 0, 100);
    world.settle();
    world.vanishes(0);
    world.settle();
    for at in 0..world.observed.pods.len() {
        if !world.observed.pods[at].deleting {
            world.prepared(at);
        }
    }
    world.settle();
    let message = &world.observed.status.front().unwrap().message;
    assert!(message.contains("Kueue admits no other pod"), "{message}");
}

/// Names of pods that are marked as the end of their group.
fn end_marks(world: &World) -> Vec<&str> {
    let pods = world.observed.pods.iter().filter(|pod| pod.ends_group);
    pods.map(|pod| pod.name.as_str()).collect()
}

#[test]
fn ended_job_ends_its_kueue_group() {
    let mut failed = grouped(world(3));
    failed.job.active_deadline = Some(Duration::from_secs(60));
    failed.fails(1, "Evicted");
    failed.seconds_pass(60);
    failed.settle();
    assert_eq!(failed.state(), "DeadlineExceeded");
    assert_eq!(
        end_marks(&failed),
        ["digits-worker-1-0"],
        "the one that stays"
    );

    let mut rank_zero = grouped(world(2));
    rank_zero.job.success_policy = SuccessPolicy::RankZero;
    rank_zero.ends(0, 0, 5);
    rank_zero.settle();
    assert_eq!(rank_zero.state(), "Completed");
    assert_eq!(end_marks(&rank_zero), ["digits-worker-0-0"]);

    let mut with_spare = world(1);
    with_spare.job.spares = 1;
    let mut spare = grouped(with_spare);
    spare.ends(0, 0, 5);
    spare.seconds_pass(60);
    spare.settle();
    assert_eq!(spare.state(), "Completed");
    assert_eq!(end_marks(&spare), ["digits-worker-0-0"]);
}

#[test]
fn kueue_group_ends_before_its_last_pods_are_deleted() {
    let mut world = grouped(world(2));
    world.job.clean_pod_policy = CleanPodPolicy::All;
    world.job.active_deadline = Some(Duration::from_secs(60));
    world.seconds_pass(60);
    let ends = world.plan();
    world.carry_out(&ends, usize::MAX);
    let plan = world.plan();
    let kinds: Vec<_> = plan.actions.iter().map(std::mem::discriminant).collect();
    let first = plan.actions.first().unwrap();
    assert!(matches!(first, Action::EndGroup { .. }), "{first:?}");
    assert!(kinds[1..].iter().all(|kind| *kind != kinds[0]));
    assert_eq!(kinds.len(), 3);
}

#[test]
fn successful_kueue_group_is_left_to_kueue() {
    let mut world = grouped(world(2));
    for at in 0..2 {
        world.ends(at, 0, 5);
    }
    world.settle();
    assert_eq!(world.state(), "Completed");
    assert_eq!(end_marks(&world), [""; 0]);
}
