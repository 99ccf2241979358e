//! Workers that never start to train while enough others do: they do not end the job.

use roundhouse_api::{FailureAction, FailureRule};
use roundhouse_contract::Progress;
use roundhouse_planner::testing::{World, script_world, world};
use roundhouse_planner::{InitContainer, PlanReason, ProgressSample, Termination};

const NEWCOMER: usize = 2;

/// Two of three workers train. The third is new: it has a node and has not started.
fn two_train(world: World) -> World {
    let mut world = world;
    world.job.min_replicas = 2;
    let mut world = world.training();
    world.vanishes(NEWCOMER);
    world.settle();
    world.is_on(NEWCOMER, "n3");
    world.observed.pods[NEWCOMER].ip = Some("10.0.0.2".to_owned());
    world.settle();
    assert_eq!(world.state(), "Training");
    assert_eq!(world.generation(), 2);
    world
}

fn message(world: &World) -> &str {
    &world.observed.status.front().unwrap().message
}

fn init_fails(world: &mut World, at: usize, times: u32) {
    let failure = Termination {
        restarts: times - 1,
        exit_code: 3,
        reason: "Error".to_owned(),
        message: None,
        finished_at: Some(world.now),
    };
    let init = InitContainer {
        name: "download".to_owned(),
        restarts: times - 1,
        failure: Some(failure),
    };
    world.initializes(at, init);
}

/// The trainer of a worker exits in the lobby, and the kubelet waits before it restarts it.
fn crashes(world: &mut World, at: usize, exit_code: i32) {
    world.ends(at, exit_code, 0);
    let end = world.observed.pods[at].container.termination.as_mut();
    end.unwrap().message.as_mut().unwrap().generation = 0;
    world.waits(at, "CrashLoopBackOff");
    world.settle();
    world.restarts(at);
    world.seconds_pass(300);
}

#[test]
fn failing_init_container_does_not_end_a_running_job() {
    let mut world = two_train(world(3));
    let limit = world.job.backoff_limit;
    for times in 1..=3 * limit {
        world.seconds_pass(300);
        init_fails(&mut world, NEWCOMER, times);
        assert_eq!(world.settle().reason, PlanReason::Training, "{times}");
    }
    assert_eq!(world.generation(), 2);
    assert_eq!(world.observed.status.incidents.total, 0);
    let words = message(&world);
    let name = &world.observed.pods[NEWCOMER].name;
    for expected in [
        name,
        "download",
        "exit code 3",
        "the others train without it",
    ] {
        assert!(words.contains(expected), "{expected}: {words}");
    }
}

#[test]
fn crashing_new_worker_does_not_end_a_running_job() {
    for mut world in [two_train(world(3)), two_train(script_world(3))] {
        let limit = world.job.backoff_limit;
        for _ in 0..3 * limit {
            crashes(&mut world, NEWCOMER, 1);
        }
        assert_eq!(world.settle().reason, PlanReason::Training);
        let words = message(&world);
        let expected = "(exit code 1): words; container trainer was restarted";
        assert!(words.contains(expected), "{words}");
    }
}

#[test]
fn left_out_worker_is_one_event() {
    let mut world = two_train(world(3));
    let limit = world.job.backoff_limit;
    let mut found = Vec::new();
    for times in 1..=3 * limit {
        world.seconds_pass(300);
        init_fails(&mut world, NEWCOMER, times);
        for _ in 0..3 {
            let plan = world.plan();
            let events = plan.events.iter();
            found.extend(events.filter(|it| it.reason == "WorkerLeftOut").cloned());
            world.carry_out(&plan, usize::MAX);
        }
    }
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].message.contains("download"), "{found:?}");
    let left_out = |world: &World| world.observed.status.workers.as_ref()?.left_out.clone();
    assert_eq!(
        left_out(&world),
        Some(world.observed.pods[NEWCOMER].name.clone())
    );
    world.vanishes(NEWCOMER);
    world.settle();
    assert_eq!(left_out(&world), None);
}

#[test]
fn failing_spare_does_not_end_the_job() {
    let mut world = world(2);
    world.job.spares = 1;
    let mut world = world.training();
    world.vanishes(NEWCOMER);
    world.settle();
    for times in 1..=20 {
        world.seconds_pass(300);
        init_fails(&mut world, NEWCOMER, times);
        assert_eq!(world.settle().reason, PlanReason::Training);
    }
}

#[test]
fn failing_worker_ends_a_job_below_its_minimum() {
    let mut world = two_train(world(3));
    world.job.min_replicas = 3;
    let limit = world.job.backoff_limit;
    for times in 1..=limit + 2 {
        world.seconds_pass(300);
        init_fails(&mut world, NEWCOMER, times);
        world.settle();
    }
    assert_eq!(world.state(), "BackoffLimitExceeded");
}

#[test]
fn failing_new_worker_does_not_end_a_recovering_job() {
    let mut world = two_train(script_world(3));
    for times in 1..=20 {
        world.seconds_pass(300);
        init_fails(&mut world, NEWCOMER, times);
        world.settle();
    }
    for at in 0..2 {
        world.ends(at, 1, 0);
    }
    world.settle();
    assert!(!world.observed.status.is_terminal(), "{}", message(&world));
    for at in 0..2 {
        world.restarts(at);
        world.prepared(at);
    }
    world.settle();
    assert_eq!(world.state(), "Training");
}

#[test]
fn failing_worker_ends_a_starting_job_unless_others_start() {
    let mut world = world(3);
    world.job.min_replicas = 2;
    world.settle();
    world.is_on(0, "n0");
    init_fails(&mut world, 0, 20);
    let plan = world.plan();
    assert!(plan.status.is_terminal(), "others wait for nodes");
    world.is_on(1, "n1");
    world.is_on(2, "n2");
    let plan = world.plan();
    assert!(!plan.status.is_terminal(), "two others load their images");
    init_fails(&mut world, 1, 20);
    world.settle();
    assert_eq!(world.state(), "BackoffLimitExceeded");
}

#[test]
fn permanent_error_of_a_new_worker_ends_no_running_job() {
    for code in [64, 65] {
        let mut world = two_train(world(3));
        for _ in 0..20 {
            crashes(&mut world, NEWCOMER, code);
        }
        assert_eq!(world.settle().reason, PlanReason::Training, "{code}");
        assert!(message(&world).contains(&format!("exit code {code}")));
        // A permanent error of a member ends the job.
        world.ends(0, code, 0);
        world.settle();
        assert!(world.observed.status.is_terminal(), "{code}");
    }
}

#[test]
fn fail_job_rule_applies_to_any_worker() {
    let mut world = two_train(world(3));
    world.job.rules = vec![FailureRule {
        action: FailureAction::FailJob,
        on_exit_codes: None,
        on_pod_conditions: None,
        on_reasons: Some(vec!["InitContainerFailed".to_owned()]),
    }];
    init_fails(&mut world, NEWCOMER, 1);
    world.settle();
    assert_eq!(world.state(), "FailurePolicyRule");
}

/// The new worker is evicted dozens of times while the others train.
fn is_replaced_repeatedly(world: &mut World) {
    for count in 1..40 {
        world.seconds_pass(310);
        let newcomer = world.observed.pods.len() - 1;
        world.fails(newcomer, "Evicted");
        world.observed.pods[newcomer].disrupted = true;
        world.settle();
        assert!(!world.observed.status.is_terminal(), "{count}");
        assert_eq!(world.state(), "Training", "{count}");
    }
}

#[test]
fn replaced_new_worker_ends_no_job_without_reports() {
    let mut world = two_train(script_world(3));
    world.job.max_replacements = Some(5);
    is_replaced_repeatedly(&mut world);
    assert!(world.observed.status.replacements.total > 5);
}

#[test]
fn replaced_new_worker_ends_no_job_that_evaluates() {
    let mut world = two_train(world(3));
    world.job.max_replacements = Some(5);
    let progress = Progress {
        generation: world.generation(),
        step: 7,
        ..Progress::default()
    };
    let at = world.now;
    world.observed.progress = Some(ProgressSample { progress, at });
    is_replaced_repeatedly(&mut world);
}

#[test]
fn crash_loop_before_the_lobby_fails_the_job() {
    let mut world = world(1);
    world.job.backoff_limit = 1;
    world.settle();
    for _ in 0..2 {
        world.ends(0, 70, 0);
        world.settle();
        assert_eq!(world.state(), "WaitingForWorkers");
        world.restarts(0);
        world.settle();
    }
    assert_eq!(world.state(), "BackoffLimitExceeded");
}
