//! Groups over a fake NCCL, which fails like NCCL. The fake ends a process that aborts its group
//! twice or frees it during an abort.

use crate::support::World;
use crate::support::abort::{ABORT, REQUESTS};

const NCCL: (&str, &str) = ("BACKEND", "nccl");
const SHORT_TIMEOUT: (&str, &str) = ("TIMEOUT_MS", "3000");

/// Kills one of two ranks during a program and then makes the other rank abort. Returns the output
/// of that rank. There are only two ranks, because a third rank could receive garbage from a
/// neighbour without an error of its own group.
fn killed_and_aborted(program: &str) -> String {
    killed_and_aborted_with(program, &[NCCL, SHORT_TIMEOUT])
}

fn killed_and_aborted_with(program: &str, environment: &[(&str, &str)]) -> String {
    let mut world = World::start(2, program, environment);
    world.wait_for_line(1, "step 3");
    world.kill(1);
    let store = world
        .store
        .prefix("gen1")
        .unwrap()
        .prefix(REQUESTS)
        .unwrap();
    store.add(ABORT, 1).unwrap();
    let survivor = world.finish().swap_remove(0);
    survivor.assert_success();
    assert!(survivor.text.contains("aborted"), "{}", survivor.text);
    survivor.text
}

#[test]
fn collectives_over_nccl_give_the_same_values() {
    for size in [1, 2, 4] {
        for output in World::start(size, "collectives", &[NCCL]).finish() {
            output.assert_success();
            assert!(output.text.contains("collectives ok"), "{}", output.text);
        }
    }
}

#[test]
fn exchanges_over_nccl_give_the_same_values() {
    super::all_say_ok("exchange", &[3], &[NCCL]);
    super::all_say_ok("experts", &[3], &[NCCL]);
    super::all_say_ok("agreement", &[2], &[NCCL]);
}

#[test]
fn ddp_over_nccl_equals_one_process() {
    for output in World::start(3, "parity", &[NCCL, ("MICRO", "3")]).finish() {
        output.assert_success();
        let difference = output.number("difference");
        assert!(difference <= 1e-6, "{difference:e}");
    }
}

#[test]
fn abort_causes_errors_and_never_garbage() {
    killed_and_aborted("sum_until_aborted");
}

#[test]
fn sums_within_a_pass_over_nccl_end_with_an_abort() {
    for output in World::start(3, "sums", &[NCCL]).finish() {
        output.assert_success();
        let difference = output.number("difference");
        assert!(difference <= 1e-12, "{difference:e}");
    }
    killed_and_aborted("pass_until_aborted");
}

#[test]
fn garbage_gradients_are_followed_by_errors() {
    let text = killed_and_aborted("train_until_aborted");
    assert!(text.contains("garbage true"), "{text}");
}

#[test]
fn power_sgd_over_nccl_ends_with_an_abort() {
    killed_and_aborted_with(
        "train_until_aborted",
        &[NCCL, SHORT_TIMEOUT, ("HOOK", "PowerSGD")],
    );
}

#[test]
fn power_sgd_over_nccl_equals_pytorchs_hook() {
    for output in World::start(2, "power_sgd", &[NCCL]).finish() {
        output.assert_success();
    }
}

#[test]
fn abort_waits_briefly_for_a_launch() {
    let environment = [NCCL, ("ROUNDHOUSE_FAULT_LAUNCH_MS", "30")];
    for output in World::start(2, "abort_within_a_launch", &environment).finish() {
        output.assert_success();
        assert!(output.number("seconds") < 5.0, "{}", output.text);
    }
}

#[test]
fn shutdown_does_not_abort_the_group() {
    for output in World::start(3, "switch", &[NCCL]).finish() {
        output.assert_success();
        assert_eq!(output.number("aborts"), 0.0);
    }
}

#[test]
fn dropped_group_without_shutdown_is_aborted() {
    for output in World::start(2, "drop_without_shutdown", &[NCCL]).finish() {
        output.assert_success();
        assert_eq!(output.number("aborts"), 1.0);
    }
}

#[test]
fn blocked_shutdown_becomes_one_abort() {
    let world = World::start(2, "shut_down_within_a_collective", &[NCCL, SHORT_TIMEOUT]);
    let outputs = world.finish();
    outputs[0].assert_success();
    assert_eq!(outputs[0].number("aborts"), 1.0);
}
