//! Memberships that a kubelet may have missed are reissued.

use jiff::SignedDuration;
use roundhouse_planner::Action;
use roundhouse_planner::testing::{World, script_world, world};

/// Number of reissues of each pod's membership.
fn repeats(world: &World) -> Vec<u32> {
    let pods = world.observed.pods.iter();
    pods.map(|pod| pod.membership.as_ref().unwrap().repeats)
        .collect()
}

/// Three workers have just got generation 1.
fn issued() -> World {
    let mut world = world(3).training();
    world.observed.formed = Some(0);
    world.settle();
    world
}

#[test]
fn unformed_generation_is_reissued_without_incident() {
    let mut world = issued();
    world.seconds_pass(3);
    let plan = world.settle();
    assert_eq!(repeats(&world), [0; 3]);
    assert!(plan.requeue_after.is_some_and(|after| after.as_secs() <= 3));
    // A member that is not Ready is given up after 15 s, and has got the reissue before that.
    world.is_ready(1, false);
    world.seconds_pass(3);
    world.settle();
    assert_eq!(repeats(&world), [1; 3]);
    world.is_ready(1, true);
    for (seconds, expected) in [(8, 1), (2, 2), (18, 2), (2, 3)] {
        world.seconds_pass(seconds);
        world.settle();
        assert_eq!(repeats(&world), [expected; 3]);
    }
    assert_eq!(world.generation(), 1);
    assert_eq!(world.observed.status.incidents.total, 0);
}

#[test]
fn reissue_changes_only_the_count() {
    let mut world = issued();
    let before = world.observed.pods[1].membership.clone().unwrap();
    world.seconds_pass(6);
    let plan = world.plan();
    let repeated = plan.actions.iter().find_map(|action| match action {
        Action::IssueMembership {
            pod, membership, ..
        } if *pod == world.observed.pods[1].name => Some(membership.clone()),
        _ => None,
    });
    let mut repeated = repeated.unwrap();
    assert_eq!(repeated.repeats, 1);
    repeated.repeats = 0;
    assert_eq!(repeated, before);
}

#[test]
fn formed_generation_is_not_reissued() {
    let mut world = issued();
    world.observed.formed = Some(1);
    world.seconds_pass(60);
    assert!(world.settle().actions.is_empty());
    assert_eq!(repeats(&world), [0; 3]);
}

#[test]
fn without_reports_only_unready_members_get_a_reissue() {
    let mut world = world(3).training();
    world.is_ready(1, false);
    world.seconds_pass(6);
    world.settle();
    assert_eq!(repeats(&world), [0, 1, 0]);
}

#[test]
fn formed_script_without_progress_is_not_reissued() {
    let mut world = script_world(2).training();
    // The agent reports the generation of its processes.
    world.observed.formed = Some(1);
    world.seconds_pass(6);
    world.settle();
    assert_eq!(repeats(&world), [0; 2]);
}

#[test]
fn reissues_end_after_the_kubelet_synchronizes() {
    let mut world = issued();
    world.seconds_pass(120);
    world.settle();
    assert_eq!(repeats(&world), [0; 3]);
}

#[test]
fn reissue_time_starts_with_the_last_member() {
    let mut world = issued();
    let last = world.now + SignedDuration::from_secs(20);
    let document = world.observed.pods[0].membership.as_mut();
    document.unwrap().issued_at = last.to_string();
    world.seconds_pass(24);
    world.settle();
    assert_eq!(repeats(&world), [0; 3]);
    world.seconds_pass(2);
    world.settle();
    assert_eq!(repeats(&world), [1; 3]);
}

#[test]
fn large_generation_is_reissued_later() {
    let mut world = world(300).training();
    world.observed.formed = Some(0);
    world.seconds_pass(7);
    world.settle();
    assert!(repeats(&world).iter().all(|repeats| *repeats == 0));
    world.seconds_pass(2);
    world.settle();
    assert!(repeats(&world).iter().all(|repeats| *repeats == 1));
}
