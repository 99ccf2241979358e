//! A restored API server: the workers follow a generation that the restored status does not have.
//! Their agents ignore memberships that are not newer than theirs.

use roundhouse_contract::Progress;
use roundhouse_planner::testing::{World, world};
use roundhouse_planner::{PlanReason, ProgressSample};

/// A job that trains in generation 1, according to the API server, and whose rank
/// 0 reports another generation.
fn follows(generation: u64) -> World {
    let mut world = world(2).training();
    let progress = Progress {
        generation,
        step: 40,
        total_steps: 100,
        ..Progress::default()
    };
    let at = world.now;
    world.observed.progress = Some(ProgressSample { progress, at });
    world
}

#[test]
fn members_of_a_forgotten_generation_get_a_newer_one() {
    let mut world = follows(7);
    assert_eq!(world.plan().reason, PlanReason::RaisingGeneration);
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!(world.generations(), [8, 8]);
    assert_eq!(world.observed.status.incidents.total, 0, "no worker failed");
}

#[test]
fn partly_issued_generation_is_followed_by_a_newer_one() {
    let mut world = follows(7);
    world.observed.pods[1].membership = None;
    assert_eq!(world.plan().reason, PlanReason::RaisingGeneration);
    world.settle();
    assert_eq!(world.generation(), 8);
}

#[test]
fn generation_of_a_failed_worker_is_not_reused() {
    let mut world = world(3);
    world.job.min_replicas = 1;
    let mut world = world.training();
    world.ends(2, 137, 40);
    let end = world.observed.pods[2].container.termination.as_mut();
    end.unwrap().message.as_mut().unwrap().generation = 9;
    world.settle();
    assert!(world.generation() >= 10, "{}", world.generation());
}

#[test]
fn membership_without_status_sets_the_newest_generation() {
    let mut world = world(2).training();
    for pod in &mut world.observed.pods {
        pod.membership.as_mut().unwrap().generation = 5;
    }
    world.settle();
    assert_eq!(world.generations(), [6, 6]);
}

#[test]
fn implausible_generation_is_ignored() {
    for generation in [u64::MAX, 1_000_000] {
        let world = follows(generation);
        assert_eq!(world.plan().reason, PlanReason::Training);
    }
}
