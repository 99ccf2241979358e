//! The failure that explains others is the one that counts and is reported.

use roundhouse_contract::Reason;
use roundhouse_planner::PlanReason;
use roundhouse_planner::testing::{World, world};

fn trains(workers: u32) -> World {
    let mut world = world(workers);
    world.job.min_replicas = 1;
    world.training()
}

/// Worker 1 of three hangs: its peers lose it and get generation 2, which it never receives.
fn hanging() -> World {
    let mut world = world(3);
    world.job.min_replicas = 1;
    let mut world = world.training();
    world.seconds_pass(60);
    world.is_ready(0, false);
    world.is_ready(2, false);
    world.seconds_pass(2);
    world.settle();
    assert_eq!(
        (world.generation(), incidents(&world)),
        (2, (1, "PeersLost"))
    );
    world.seconds_pass(10);
    world
}

fn incidents(world: &World) -> (u32, &str) {
    let status = &world.observed.status;
    let last = status.last_failure.as_ref();
    (status.incidents.total, &last.unwrap().reason)
}

#[test]
fn lost_peers_of_a_failed_worker_are_the_same_incident() {
    let mut world = world(3).training();
    world.ends(1, 137, 40);
    world.settle();
    world.ends(0, 75, 40);
    world.settle();
    world.ends(2, 75, 40);
    world.settle();
    let incidents = &world.observed.status.incidents;
    assert_eq!(
        (
            incidents.total,
            incidents.since_progress,
            incidents.last_step
        ),
        (1, 1, 40)
    );
    let failure = world.observed.status.last_failure.as_ref().unwrap();
    assert_eq!(
        (failure.worker.as_str(), failure.exit_code),
        ("digits-worker-1-0", Some(137))
    );
    for at in 0..3 {
        world.restarts(at);
        world.settle();
        world.prepared(at);
        world.settle();
    }
    assert_eq!(world.generations(), [2, 2, 2]);
    assert_eq!(world.observed.status.incidents.total, 1);
}

#[test]
fn cause_replaces_a_reported_lost_peer() {
    let mut world = world(2).training();
    world.ends(0, 75, 40);
    world.settle();
    let code = |world: &World| {
        world
            .observed
            .status
            .last_failure
            .as_ref()
            .unwrap()
            .exit_code
    };
    assert_eq!(code(&world), Some(75));
    world.ends(1, 137, 40);
    world.settle();
    assert_eq!(code(&world), Some(137));
    assert_eq!(world.observed.status.incidents.total, 1);
}

#[test]
fn failure_between_raising_and_issuing_is_counted() {
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
fn late_end_of_a_hung_worker_is_the_same_incident() {
    let mut world = hanging();
    world.ends(1, 76, 40);
    world.settle();
    assert_eq!(world.generation(), 3, "the others continue at once");
    assert_eq!(incidents(&world), (1, "Stalled"));
    world.is_ready(0, true);
    world.is_ready(2, true);
    world.restarts(1);
    world.prepared(1);
    world.seconds_pass(60);
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!((world.generation(), incidents(&world)), (4, (1, "Stalled")));
}

#[test]
fn late_failure_is_cause_only_if_not_in_next_generation() {
    // Exit code, the generation in the termination message, and what is counted then.
    let cases = [
        ("a hang", 76, 1, (1, "Stalled")),
        ("a kill for lack of memory", 137, 1, (1, "Killed")),
        ("a hang in the next generation", 76, 2, (2, "Stalled")),
        ("a worker that also lost its peers", 75, 1, (2, "PeerLost")),
    ];
    for (name, exit_code, said, expected) in cases {
        let mut world = hanging();
        world.ends(1, exit_code, 40);
        let end = world.observed.pods[1].container.termination.as_mut();
        let words = end.unwrap().message.as_mut().unwrap();
        words.generation = said;
        if exit_code == 137 {
            words.reason = Reason::Killed;
        }
        world.settle();
        assert_eq!(incidents(&world), expected, "{name}");
        // Another failure is another incident.
        world.is_ready(0, true);
        world.is_ready(2, true);
        world.seconds_pass(60);
        world.ends(2, 137, 50);
        world.settle();
        assert_eq!(incidents(&world).0, expected.0 + 1, "{name}");
    }
}
