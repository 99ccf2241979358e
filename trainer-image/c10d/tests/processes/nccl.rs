//! What NCCL's ways to fail ask of a group, over a stand-in for it. The stand-in ends a process that aborts its
//! group twice, or frees it within an abort.

use crate::support::World;
use crate::support::abort::{ABORT, TELL};

const NCCL: (&str, &str) = ("BACKEND", "nccl");
const SHORT_TIMEOUT: (&str, &str) = ("TIMEOUT_MS", "3000");

/// Kills one of two ranks in the midst of a program, then has the other one abort; what that one printed. With a
/// third rank its garbage could be a neighbour's, of which a group is told nothing.
fn killed_and_aborted(program: &str) -> String {
    killed_and_aborted_with(program, &[NCCL, SHORT_TIMEOUT])
}

fn killed_and_aborted_with(program: &str, environment: &[(&str, &str)]) -> String {
    let mut world = World::start(2, program, environment);
    world.wait_for_line(1, "step 3");
    world.kill(1);
    let store = world.store.prefix("gen1").unwrap().prefix(TELL).unwrap();
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
fn exchanges_and_agreements_over_nccl_give_the_same_values() {
    super::all_say_ok("exchange", &[3], &[NCCL]);
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
fn after_an_abort_there_are_errors_and_never_garbage() {
    killed_and_aborted("sum_until_aborted");
}

#[test]
fn sums_within_a_pass_over_nccl_have_the_gradients_of_one_process_and_end_with_an_abort() {
    for output in World::start(3, "sums", &[NCCL]).finish() {
        output.assert_success();
        let difference = output.number("difference");
        assert!(difference <= 1e-12, "{difference:e}");
    }
    killed_and_aborted("pass_until_aborted");
}

#[test]
fn gradients_of_an_aborted_group_are_followed_by_errors() {
    let text = killed_and_aborted("train_until_aborted");
    assert!(text.contains("garbage true"), "{text}");
}

#[test]
fn gradients_of_low_rank_end_with_an_abort() {
    killed_and_aborted_with(
        "train_until_aborted",
        &[NCCL, SHORT_TIMEOUT, ("HOOK", "PowerSGD")],
    );
}

#[test]
fn gradients_of_low_rank_over_nccl_are_those_of_pytorchs_hook() {
    for output in World::start(2, "power_sgd", &[NCCL]).finish() {
        output.assert_success();
    }
}

#[test]
fn an_abort_waits_for_the_launch_of_a_collective_and_not_for_long() {
    let environment = [NCCL, ("ROUNDHOUSE_FAULT_LAUNCH_MS", "30")];
    for output in World::start(2, "abort_within_a_launch", &environment).finish() {
        output.assert_success();
        assert!(output.number("seconds") < 5.0, "{}", output.text);
    }
}

#[test]
fn groups_that_are_shut_down_make_no_abort() {
    for output in World::start(3, "switch", &[NCCL]).finish() {
        output.assert_success();
        assert_eq!(output.number("aborts"), 0.0);
    }
}

#[test]
fn a_group_that_is_dropped_without_a_shutdown_is_aborted() {
    for output in World::start(2, "drop_without_shutdown", &[NCCL]).finish() {
        output.assert_success();
        assert_eq!(output.number("aborts"), 1.0);
    }
}

#[test]
fn a_shutdown_that_a_peer_holds_up_becomes_one_abort() {
    let world = World::start(2, "shut_down_within_a_collective", &[NCCL, SHORT_TIMEOUT]);
    let outputs = world.finish();
    outputs[0].assert_success();
    assert_eq!(outputs[0].number("aborts"), 1.0);
}
