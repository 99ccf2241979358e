//! Init containers, sidecars and hooks that keep a trainer from starting.

use roundhouse_api::{FailureAction, FailureRule};
use roundhouse_contract::{Reason, TerminationMessage};
use roundhouse_planner::testing::{World, world};
use roundhouse_planner::{InitContainer, PlanReason, Termination, Waiting};

/// Two workers have nodes, and no container has started.
fn placed() -> World {
    let mut world = world(2);
    world.settle();
    for at in 0..2 {
        world.is_on(at, &format!("n{at}"));
    }
    world
}

/// An init container that has just failed for the given number of times.
fn failed(world: &World, times: u32, words: &str) -> InitContainer {
    let message = TerminationMessage {
        reason: Reason::Crashed,
        rank: None,
        generation: 0,
        step: 0,
        message: words.to_owned(),
        progress: None,
    };
    InitContainer {
        name: "download".to_owned(),
        restarts: times - 1,
        failure: Some(Termination {
            restarts: times - 1,
            exit_code: 3,
            reason: "Error".to_owned(),
            message: (!words.is_empty()).then(|| Box::new(message)),
            finished_at: Some(world.now),
        }),
    }
}

fn message(world: &World) -> &str {
    &world.observed.status.front().unwrap().message
}

#[test]
fn failed_init_container_is_named_with_code_and_message() {
    let mut world = placed();
    world.seconds_pass(60);
    let words = "Traceback:\n  line 1\nOSError: no such bucket\n";
    world.initializes(1, failed(&world, 2, words));
    let plan = world.plan();
    assert_eq!(plan.events.len(), 1, "{:?}", plan.events);
    assert!(plan.events[0].message.contains("no such bucket"));
    world.settle();
    assert_eq!(world.state(), "InitContainerFailed");
    let expected = "digits-worker-1-0 on n1: InitContainerFailed (exit code 3): init container download: OSError: no such bucket; \
                    restarted 1 time";
    assert!(message(&world).ends_with(expected), "{}", message(&world));
    let last = world.observed.status.last_failure.clone().unwrap();
    assert_eq!(last.reason, "InitContainerFailed");
    assert_eq!(last.exit_code, Some(3));
}

#[test]
fn init_container_without_message_is_named_with_its_log() {
    let mut world = placed();
    world.initializes(0, failed(&world, 1, ""));
    world.settle();
    let expected = "`kubectl logs digits-worker-0-0 -c download`";
    assert!(message(&world).contains(expected), "{}", message(&world));
}

#[test]
fn init_container_failures_above_the_limit_fail_the_job() {
    let mut world = placed();
    let limit = world.job.backoff_limit;
    for times in 1..=limit + 1 {
        world.seconds_pass(30);
        world.initializes(1, failed(&world, times, "no such bucket"));
        assert_eq!(world.settle().reason, PlanReason::WaitingForWorkers);
    }
    world.seconds_pass(30);
    world.initializes(1, failed(&world, limit + 2, "no such bucket"));
    world.settle();
    assert_eq!(world.state(), "BackoffLimitExceeded");
    let words = message(&world);
    assert!(words.contains("download") && words.contains("no such bucket"));
}

#[test]
fn init_container_failure_is_reported_once() {
    let mut world = placed();
    world.initializes(0, failed(&world, 1, "words"));
    let first = failed(&world, 1, "words");
    world.seconds_pass(3);
    world.initializes(1, first);
    world.settle();
    for _ in 0..20 {
        world.seconds_pass(10);
        let plan = world.plan();
        assert!(plan.events.is_empty() && plan.status == world.observed.status);
    }
}

#[test]
fn slow_init_container_is_not_a_missing_volume() {
    let mut world = placed();
    let init = InitContainer {
        name: "download".to_owned(),
        ..InitContainer::default()
    };
    world.initializes(0, init.clone());
    world.initializes(1, init);
    world.seconds_pass(600);
    world.settle();
    assert_eq!(world.state(), "WaitingForWorkers");
    let expected = "its init container download runs";
    assert!(message(&world).contains(expected), "{}", message(&world));
}

#[test]
fn rules_apply_to_init_containers() {
    for (action, reason, expected) in [
        (
            FailureAction::FailJob,
            "InitContainerFailed",
            "FailurePolicyRule",
        ),
        (FailureAction::FailJob, "Crashed", "InitContainerFailed"),
        (
            FailureAction::Ignore,
            "InitContainerFailed",
            "InitContainerFailed",
        ),
    ] {
        let mut world = placed();
        world.job.rules = vec![FailureRule {
            action,
            on_exit_codes: None,
            on_pod_conditions: None,
            on_reasons: Some(vec![reason.to_owned()]),
        }];
        let times = if action == FailureAction::Ignore {
            99
        } else {
            1
        };
        world.initializes(0, failed(&world, times, "words"));
        world.settle();
        assert_eq!(world.state(), expected, "{action:?} {reason}");
    }
}

#[test]
fn failed_hook_stays_named_after_the_kubelet_forgets_it() {
    let mut world = placed();
    let limit = world.job.backoff_limit;
    for at in 0..2 {
        world.observed.pods[at].ip = Some(format!("10.0.0.{at}"));
    }
    for restart in 0..=limit {
        world.seconds_pass(30);
        world.ends(0, 143, 0);
        world.waits(0, "PostStartHookError");
        let waiting = world.observed.pods[0].container.waiting.as_mut().unwrap();
        *waiting = Waiting {
            message: "Exec lifecycle hook failed: exit status 5".to_owned(),
            ..waiting.clone()
        };
        world.settle();
        assert!(
            message(&world).contains("exit status 5"),
            "{}",
            message(&world)
        );
        world.waits(0, "CrashLoopBackOff");
        world.settle();
        let last = world.observed.status.last_failure.clone().unwrap();
        assert_eq!(last.reason, "PostStartHookError", "restart {restart}");
        world.restarts(0);
    }
    world.settle();
    assert_eq!(world.state(), "BackoffLimitExceeded");
    assert!(
        message(&world).contains("exit status 5"),
        "{}",
        message(&world)
    );
}

#[test]
fn foreign_stop_of_a_container_is_reported_as_such() {
    let mut world = placed();
    world.ends(0, 143, 0);
    world.settle();
    let last = world.observed.status.last_failure.clone().unwrap();
    assert_eq!(last.reason, "Left");
    let expected = "kubectl describe pod digits-worker-0-0";
    assert!(last.message.contains(expected), "{}", last.message);
}
