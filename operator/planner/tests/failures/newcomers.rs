//! Workers that never start to train while enough others do: they do not end the job.

use roundhouse_api::{FailureAction, FailureRule};
use roundhouse_contract::Progress;
use roundhouse_planner::testing::{World, script_world, world};
use roundhouse_planner::{InitContainer, PlanReason, ProgressSample, Termination};

const NEWCOMER: usize = 2;

/// Two of three workers train, and the third is new: it is placed, and has not started.
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

/// The trainer of a worker ends in the lobby, and the kubelet waits before it starts it again.
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
fn an_init_container_that_fails_again_and_again_costs_a_job_that_trains_nothing() {
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
fn a_newcomer_whose_trainer_crashes_again_and_again_costs_a_job_that_trains_nothing() {
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
fn that_a_job_trains_without_a_worker_is_an_event_once() {
    let mut world = two_train(world(3));
    let limit = world.job.backoff_limit;
    let mut told = Vec::new();
    for times in 1..=3 * limit {
        world.seconds_pass(300);
        init_fails(&mut world, NEWCOMER, times);
        for _ in 0..3 {
            let plan = world.plan();
            let events = plan.events.iter();
            told.extend(events.filter(|it| it.reason == "WorkerLeftOut").cloned());
            world.carry_out(&plan, usize::MAX);
        }
    }
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].message.contains("download"), "{told:?}");
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
fn a_spare_that_never_starts_ends_nothing() {
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
fn a_worker_without_which_too_few_are_left_ends_the_job() {
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
fn while_members_recover_a_newcomer_that_fails_ends_nothing() {
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
fn a_job_that_starts_is_ended_by_a_worker_that_fails_unless_others_are_on_their_way() {
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
fn a_newcomer_that_calls_its_error_permanent_ends_no_job_that_trains() {
    for code in [64, 65] {
        let mut world = two_train(world(3));
        for _ in 0..20 {
            crashes(&mut world, NEWCOMER, code);
        }
        assert_eq!(world.settle().reason, PlanReason::Training, "{code}");
        assert!(message(&world).contains(&format!("exit code {code}")));
        // A member is believed.
        world.ends(0, code, 0);
        world.settle();
        assert!(world.observed.status.is_terminal(), "{code}");
    }
}

#[test]
fn a_rule_of_the_job_ends_it_whoever_fails() {
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

/// The newcomer is evicted dozens of times, and the others train.
fn is_made_again_and_again(world: &mut World) {
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
fn a_newcomer_that_is_made_again_and_again_ends_no_job_that_trains_in_silence() {
    let mut world = two_train(script_world(3));
    world.job.max_replacements = Some(5);
    is_made_again_and_again(&mut world);
    assert!(world.observed.status.replacements.total > 5);
}

#[test]
fn a_newcomer_that_is_made_again_and_again_ends_no_job_whose_members_evaluate_for_hours() {
    let mut world = two_train(world(3));
    world.job.max_replacements = Some(5);
    let progress = Progress {
        generation: world.generation(),
        step: 7,
        ..Progress::default()
    };
    let at = world.now;
    world.observed.progress = Some(ProgressSample { progress, at });
    is_made_again_and_again(&mut world);
}

#[test]
fn a_container_that_never_gets_to_the_lobby_ends_the_job_too() {
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
