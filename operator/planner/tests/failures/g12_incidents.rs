//! Each incident counts once, and some failures end a job at once.

use roundhouse_planner::PlanReason;
use roundhouse_planner::testing::{World, raw_joining_job, world, world_of};

fn trains(workers: u32) -> World {
    let mut world = world(workers);
    world.job.min_replicas = 1;
    world.training()
}

fn joining(workers: u32) -> World {
    world_of(&raw_joining_job(workers))
}

#[test]
fn crash_of_the_operator_counts_no_incident_twice() {
    let mut world = trains(2);
    world.ends(0, 137, 40);
    let lost = world.plan();
    assert_eq!(lost.status.incidents.total, 1);
    // The plan was not written, so the next operator sees the same state.
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

#[test]
fn invalid_data_fails_the_job_with_the_worker_message() {
    let mut world = world(2);
    world.settle();
    world.ends(1, 65, 0);
    world.settle();
    assert_eq!(world.state(), "DataInvalid");
    let message = &world.observed.status.front().unwrap().message;
    assert_eq!(
        message,
        "digits-worker-1-0 rank 0: DataInvalid (exit code 65): words"
    );
    assert!(
        world.observed.pods.is_empty(),
        "pods of a failed job would restart indefinitely"
    );
}

#[test]
fn script_that_never_joins_fails_the_job_at_once() {
    let mut world = joining(2);
    world.settle();
    world.prepared(0);
    world.ends(1, 64, 0);
    world.settle();
    assert_eq!(world.state(), "ConfigInvalid");
}

#[test]
fn each_crash_of_a_worker_in_back_off_is_one_incident() {
    let mut world = world(2);
    world.job.min_replicas = 1;
    let mut world = world.training();
    for death in 1..=3 {
        world.seconds_pass(60);
        world.ends(1, 9, 0);
        world.settle();
        // The kubelet waits before the restart, so the restart count is still that of the run that
        // ended.
        world.waits(1, "CrashLoopBackOff");
        for _ in 0..4 {
            world.seconds_pass(40);
            world.settle();
            let nodes = world.observed.status.membership.as_ref().unwrap().nodes;
            assert_eq!(nodes, 1, "the container that does not run is no member");
            assert_eq!(world.observed.status.incidents.total, death);
        }
        let message = &world.observed.status.front().unwrap().message;
        assert!(message.contains("CrashLoopBackOff"), "{message}");
        world.restarts(1);
        world.is_ready(0, true);
        world.prepared(1);
        assert_eq!(world.settle().reason, PlanReason::Training);
    }
}
