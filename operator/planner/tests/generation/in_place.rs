//! A process of a worker dies and restarts while the container of the worker continues.

use roundhouse_api::{ExitCodeOperator, FailureAction, FailureRule, OnExitCodes};
use roundhouse_planner::PlanReason;
use roundhouse_planner::testing::{World, world};

/// A job of workers with two processes each, which has trained in generation 1 for a minute.
/// One worker is enough.
fn training(workers: u32) -> World {
    let mut world = world(workers);
    world.job.procs_per_worker = 2;
    world.job.min_replicas = 1;
    let mut world = world.training();
    world.seconds_pass(60);
    world
}

fn nodes(world: &World) -> u32 {
    world.observed.status.membership.as_ref().unwrap().nodes
}

fn incidents(world: &World) -> (u32, Option<i32>) {
    let status = &world.observed.status;
    let last = status.last_failure.as_ref();
    (status.incidents.total, last.and_then(|last| last.exit_code))
}

#[test]
fn worker_rejoins_when_its_process_is_prepared() {
    let mut world = training(3);
    world.process_dies(1, 137, 1, 40);
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!((world.generation(), nodes(&world)), (2, 2));
    assert_eq!(incidents(&world), (1, Some(137)));
    let last = world.observed.status.last_failure.clone().unwrap();
    assert_eq!((last.rank, last.step), (Some(1), Some(40)));
    assert_eq!(last.message, "words");

    world.seconds_pass(60);
    world.settle();
    assert_eq!(world.generation(), 2, "the others do not wait for it");
    world.process_is_prepared(1);
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!((world.generation(), nodes(&world)), (3, 3));
    world.is_ready(1, true);
    world.seconds_pass(60);
    world.settle();
    assert_eq!(
        (world.generation(), incidents(&world).0),
        (3, 1),
        "one incident"
    );
    let pod = &world.observed.pods[1];
    assert_eq!(pod.container.restarts, 0);
}

#[test]
fn only_worker_waits_for_its_restarted_process() {
    let mut world = training(1);
    world.process_dies(0, 137, 1, 40);
    world.settle();
    assert_eq!((world.generation(), world.state()), (1, "Recovering"));
    world.seconds_pass(600);
    world.settle();
    assert_eq!((world.generation(), incidents(&world).0), (1, 1));
    world.process_is_prepared(0);
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!(world.generation(), 2);
    world.is_ready(0, true);
    world.seconds_pass(60);
    world.settle();
    assert_eq!((world.generation(), incidents(&world)), (2, (1, Some(137))));
}

#[test]
fn end_in_an_earlier_generation_is_not_counted_again() {
    let mut world = training(1);
    world.process_dies(0, 137, 1, 40);
    world.process_is_prepared(0);
    world.settle();
    assert_eq!(world.generation(), 2);
    // Generation 2 forms, and the agent still reports the end in generation 1.
    world.seconds_pass(5);
    world.settle();
    assert_eq!((world.generation(), incidents(&world).0), (2, 1));
    world.process_dies(0, 137, 2, 41);
    world.process_is_prepared(0);
    world.settle();
    assert_eq!((world.generation(), incidents(&world).0), (3, 2));
}

#[test]
fn late_report_of_an_end_replaces_lost_peers() {
    let mut world = training(2);
    world.job.min_replicas = 2;
    world.is_ready(0, false);
    world.is_ready(1, false);
    world.seconds_pass(10);
    world.settle();
    assert_eq!((world.generation(), incidents(&world)), (2, (1, None)));
    world.process_dies(1, 137, 1, 40);
    world.process_is_prepared(1);
    world.settle();
    assert_eq!(incidents(&world), (1, Some(137)));
}

#[test]
fn repeated_process_deaths_without_a_step_fail_the_job() {
    let mut world = training(1);
    for _ in 0..=world.job.backoff_limit {
        let newest = world.generation();
        world.process_dies(0, 137, newest, 40);
        world.process_is_prepared(0);
        world.settle();
        world.is_ready(0, true);
        world.seconds_pass(30);
    }
    assert_eq!(world.state(), "BackoffLimitExceeded");
}

#[test]
fn rules_apply_to_processes_as_to_containers() {
    for (action, state) in [
        (FailureAction::FailJob, "FailurePolicyRule"),
        (FailureAction::Ignore, "Training"),
    ] {
        let mut world = training(2);
        world.job.rules = vec![FailureRule {
            action,
            on_exit_codes: Some(OnExitCodes {
                operator: ExitCodeOperator::In,
                values: vec![42],
            }),
            on_pod_conditions: None,
            on_reasons: None,
        }];
        world.process_dies(1, 42, 1, 40);
        world.settle();
        assert_eq!(world.state(), state, "{action:?}");
        assert_eq!(world.observed.status.incidents.total, 0, "{action:?}");
    }
}

#[test]
fn worker_without_agent_report_has_time_to_prepare() {
    let mut world = training(1);
    world.is_ready(0, false);
    world.seconds_pass(10);
    world.settle();
    assert_eq!((world.generation(), incidents(&world)), (2, (1, None)));
    world.seconds_pass(60);
    world.settle();
    assert_eq!(world.generation(), 2, "its process may still load");
    world.seconds_pass(61);
    world.settle();
    assert_eq!((world.generation(), incidents(&world).0), (3, 2));
}

#[test]
fn failed_probe_of_a_worker_that_trains_breaks_no_generation() {
    for (reports_ready, seconds, generation) in [(true, 60, 1), (false, 5, 1), (false, 11, 2)] {
        let mut world = training(2);
        world.is_ready(1, false);
        if reports_ready {
            world.agent_reports_ready(1);
        }
        world.seconds_pass(seconds);
        world.settle();
        assert_eq!(world.generation(), generation, "{reports_ready} {seconds}");
    }
}

#[test]
fn container_end_after_a_process_restart_is_the_newer_one() {
    let mut world = training(2);
    world.process_dies(1, 137, 1, 40);
    world.settle();
    world.process_is_prepared(1);
    world.settle();
    assert_eq!((world.generation(), nodes(&world)), (3, 2));
    world.is_ready(1, true);
    world.seconds_pass(60);
    world.ends(1, 77, 90);
    world.observed.pods[1].node = Some("n1".to_owned());
    world.settle();
    assert_eq!(incidents(&world), (2, Some(77)));
}

/// A job of sharded workers, and this number of spares, which has trained in generation 1 for a
/// minute.
fn sharded(workers: u32, spares: u32) -> World {
    let mut world = world(workers);
    world.job.procs_per_worker = 2;
    world.job.spares = spares;
    let mut world = world.training();
    world.observed.formed = Some(1);
    world.seconds_pass(60);
    world
}

/// Node ranks in the newest generation, by worker.
fn node_ranks(world: &World) -> Vec<Option<u32>> {
    let newest = world.generation();
    let places = world.observed.pods.iter().map(|pod| {
        let place = pod.membership.as_ref()?;
        (place.generation == newest).then_some(place.node_rank)
    });
    places.collect()
}

#[test]
fn spare_replaces_a_sharded_worker_that_restarts() {
    let mut world = sharded(2, 1);
    world.replica_dies(0, 137, 1, 40);
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!(node_ranks(&world), [None, Some(0), Some(1)]);
    world.process_is_prepared(0);
    world.seconds_pass(60);
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!(
        node_ranks(&world),
        [None, Some(0), Some(1)],
        "it is the next spare"
    );
    let workers = world.observed.status.workers.as_ref().unwrap();
    assert_eq!((workers.ready, workers.active), (2, 2), "both train");
    assert_eq!(world.observed.pods.len(), 3);
    assert_eq!(incidents(&world), (1, Some(137)));
}

#[test]
fn sharded_worker_returns_behind_those_with_the_state() {
    let mut world = sharded(3, 0);
    world.job.min_replicas = 2;
    world.replica_dies(0, 137, 1, 40);
    world.settle();
    assert_eq!(node_ranks(&world), [None, Some(0), Some(1)]);
    world.process_is_prepared(0);
    world.settle();
    assert_eq!(node_ranks(&world), [Some(2), Some(0), Some(1)]);
}

#[test]
fn sharded_workers_that_all_restarted_train_again() {
    let mut world = sharded(2, 0);
    for at in [0, 1] {
        world.replica_dies(at, 137, 1, 40);
    }
    world.settle();
    for at in [0, 1] {
        world.process_is_prepared(at);
    }
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!((world.generation(), nodes(&world)), (2, 2));
}

/// The script fails in both workers, and the operator sees one of them first.
#[test]
fn replica_that_dies_after_another_has_not_lost_its_peers() {
    let mut world = sharded(2, 0);
    world.job.min_replicas = 1;
    world.replica_dies(0, 1, 1, 40);
    world.settle();
    assert_eq!(node_ranks(&world), [None, Some(0)]);
    world.replica_dies(1, 1, 1, 40);
    world.seconds_pass(60);
    world.settle();
    assert_eq!(incidents(&world), (2, Some(1)));
    for at in [0, 1] {
        world.process_is_prepared(at);
    }
    world.seconds_pass(60);
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!((world.generation(), nodes(&world)), (3, 2));
    assert_eq!(incidents(&world), (2, Some(1)));
}

#[test]
fn spare_replaces_the_only_replica_that_restarts() {
    let mut world = sharded(1, 1);
    world.replica_dies(0, 137, 1, 40);
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!(node_ranks(&world), [None, Some(0)]);
    world.is_ready(1, true);
    world.process_is_prepared(0);
    world.seconds_pass(60);
    world.settle();
    assert_eq!(node_ranks(&world), [None, Some(0)]);
    world.replica_dies(1, 137, 2, 50);
    assert_eq!(world.settle().reason, PlanReason::Training);
    assert_eq!(node_ranks(&world), [Some(0), None]);
}

#[test]
fn spare_waits_for_an_unreachable_replica_with_the_state() {
    let mut world = sharded(2, 1);
    world.is_unreachable(1, true);
    world.replica_dies(0, 137, 1, 40);
    world.settle();
    assert_eq!((world.generation(), world.state()), (1, "Recovering"));
    // It is lost with its pod, and the others begin with the checkpoint.
    world.replica_dies(1, 137, 1, 40);
    world.is_unreachable(1, false);
    world.settle();
    world.process_is_prepared(0);
    world.settle();
    assert_eq!((world.generation(), nodes(&world)), (2, 2));
}
