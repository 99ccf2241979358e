//! Spares: workers that wait in the lobby to replace a lost member.

use roundhouse_contract::Action as Instruction;
use roundhouse_planner::testing::{World, world};
use roundhouse_planner::{Action, PlanReason, Pod};

/// This number of workers train, and this number of spares wait.
fn with_spares(workers: u32, spares: u32) -> World {
    let mut world = world(workers);
    world.job.spares = spares;
    let mut world = world.lobby();
    assert_eq!(world.settle().reason, PlanReason::Training);
    world
}

/// Names of the members of the newest generation.
fn members(world: &World) -> Vec<&str> {
    let newest = world.observed.status.membership.as_ref().unwrap();
    let is_member = |pod: &&Pod| {
        pod.membership.as_ref().is_some_and(|place| {
            place.generation == newest.generation && place.action == Instruction::Join
        })
    };
    let members = world.observed.pods.iter().filter(is_member);
    members.map(|pod| pod.name.as_str()).collect()
}

fn made(world: &World) -> usize {
    let plan = world.plan();
    let is_made = |action: &&Action| matches!(action, Action::CreateWorker { .. });
    plan.actions.iter().filter(is_made).count()
}

#[test]
fn spares_wait_and_are_counted_separately() {
    let world = with_spares(2, 1);
    assert_eq!(members(&world), ["digits-worker-0-0", "digits-worker-1-0"]);
    assert_eq!(world.observed.pods.len(), 3);
    let status = &world.observed.status;
    let workers = status.workers.as_ref().unwrap();
    assert_eq!((workers.wanted, workers.ready, workers.active), (2, 2, 2));
    assert_eq!((workers.spares, workers.summary.as_str()), (1, "2/2"));
    assert_eq!(status.replicas, 2, "the scale subresource");
}

#[test]
fn job_trains_as_soon_as_enough_workers_are_ready() {
    let mut world = world(2);
    world.job.spares = 1;
    world.settle();
    world.prepared(0);
    world.settle();
    assert_eq!(world.state(), "WaitingForWorkers");
    world.prepared(2);
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!(members(&world), ["digits-worker-0-0", "digits-worker-2-0"]);
    world.observed.pods[1].unschedulable = Some("0/2 nodes".to_owned());
    world.settle();
    let words = &world.observed.status.front().unwrap().message;
    assert!(words.contains("a spare is missing"), "{words}");
    world.prepared(1);
    world.settle();
    assert_eq!(members(&world), ["digits-worker-0-0", "digits-worker-2-0"]);
    assert_eq!(world.observed.status.workers.as_ref().unwrap().spares, 1);
}

#[test]
fn spare_replaces_a_lost_member_before_a_new_pod() {
    let mut world = with_spares(2, 1);
    world.vanishes(0);
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!(members(&world), ["digits-worker-1-0", "digits-worker-2-0"]);
    let fresh = world.observed.pods.iter().find(|pod| !pod.ready);
    assert_eq!(fresh.unwrap().name, "digits-worker-0-0", "the next spare");
    assert_eq!(world.observed.status.workers.as_ref().unwrap().spares, 0);
}

#[test]
fn crashed_member_becomes_the_next_spare() {
    let mut world = with_spares(3, 1);
    world.ends(1, 137, 40);
    assert_eq!(world.settle().reason, PlanReason::Training);
    let trains = [
        "digits-worker-0-0",
        "digits-worker-2-0",
        "digits-worker-3-0",
    ];
    assert_eq!(members(&world), trains);
    world.restarts(1);
    world.prepared(1);
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!(members(&world), trains, "it waits in the lobby");
    let status = &world.observed.status;
    assert_eq!(status.incidents.total, 1);
    assert_eq!(status.membership.as_ref().unwrap().generation, 2);
    assert_eq!(status.workers.as_ref().unwrap().spares, 1);
}

#[test]
fn death_before_issue_is_an_incident_with_spares() {
    for spares in [0, 1] {
        let mut world = world(2);
        world.job.spares = spares;
        let mut world = world.lobby();
        let raise = world.plan();
        world.carry_out(&raise, usize::MAX);
        world.ends(0, 137, 0);
        world.settle();
        assert_eq!(world.observed.status.incidents.total, 1, "{spares}");
    }
}

#[test]
fn scale_down_removes_members_and_keeps_spares() {
    let mut world = with_spares(3, 1);
    (world.job.replicas, world.job.min_replicas) = (2, 2);
    world.settle();
    assert_eq!(members(&world), ["digits-worker-0-0", "digits-worker-1-0"]);
    let names: Vec<_> = world.observed.pods.iter().map(|pod| &pod.name).collect();
    let left = [
        "digits-worker-0-0",
        "digits-worker-1-0",
        "digits-worker-3-0",
    ];
    assert_eq!(names, left);
    world.job.spares = 0;
    world.settle();
    assert_eq!(world.observed.pods.len(), 2, "the spare is not wanted");
    assert_eq!(members(&world).len(), 2);
}

#[test]
fn scale_up_uses_the_spare_at_once() {
    let mut world = with_spares(2, 1);
    world.job.replicas = 3;
    world.settle();
    assert_eq!(members(&world).len(), 3);
    assert_eq!(world.observed.pods.len(), 4);
    assert_eq!(made(&world), 0);
}

#[test]
fn returning_member_leaves_if_a_spare_replaced_it() {
    let mut world = with_spares(3, 2);
    for at in 0..5 {
        world.is_on(at, &format!("n{at}"));
    }
    // Two nodes are lost at once: an outage, in which their pods are not replaced for some time.
    for at in [1, 2] {
        world.is_unreachable(at, true);
        world.observed.pods[at].ready_at = Some(world.now);
    }
    world.lingering = true;
    world.settle();
    let trains = [
        "digits-worker-0-0",
        "digits-worker-3-0",
        "digits-worker-4-0",
    ];
    assert_eq!(members(&world), trains);
    world.is_unreachable(1, false);
    world.is_unreachable(2, false);
    world.settle();
    assert_eq!(members(&world), trains);
    let leave: Vec<_> = world.observed.pods[..3]
        .iter()
        .map(|pod| pod.deleting)
        .collect();
    assert_eq!(leave, [false, true, true]);
}

#[test]
fn spares_do_not_train_beside_unreachable_members() {
    let mut world = with_spares(2, 2);
    for at in 0..4 {
        world.is_on(at, if at < 2 { "n0" } else { "n1" });
    }
    let mut other = world.clone();
    // The operator does not replace the pods yet.
    for world in [&mut world, &mut other] {
        world.lingering = true;
        world.is_unreachable(0, true);
        world.is_unreachable(1, true);
    }
    let plan = world.plan();
    assert_ne!(plan.reason, PlanReason::RaisingGeneration);
    // The members return and continue to train.
    world.is_unreachable(0, false);
    world.is_unreachable(1, false);
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!(world.generation(), 1);
    // Otherwise they are given up.
    for at in 0..2 {
        other.observed.pods[at].ready_at = Some(other.now);
    }
    other.settle();
    assert_eq!(members(&other), ["digits-worker-0-0", "digits-worker-1-0"]);
    other.seconds_pass(300);
    other.settle();
    assert_eq!(members(&other), ["digits-worker-2-0", "digits-worker-3-0"]);
}

#[test]
fn spare_does_not_replace_a_process_restart() {
    let mut world = with_spares(1, 1);
    world.process_dies(0, 137, 1, 40);
    world.settle();
    assert_eq!(members(&world), ["digits-worker-0-0"]);
    world.process_is_prepared(0);
    world.settle();
    assert_eq!(members(&world), ["digits-worker-0-0"]);
    assert_eq!(world.generation(), 2);
}
