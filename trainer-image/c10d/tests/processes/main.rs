//! Real processes over Gloo on the loopback interface: values of collectives, parity of DDP with
//! one process, and errors of survivors when a peer is killed.
#![allow(unreachable_pub)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::default_trait_access,
    clippy::cast_precision_loss,
    clippy::float_cmp
)]

mod abrupt;
#[cfg(feature = "fake-nccl")]
mod nccl;
mod store;
mod support;
mod threads;

use std::time::{Duration, Instant};

use support::World;

/// Runs a program, which contains its own assertions, with these numbers of ranks.
fn all_say_ok(program: &str, sizes: &[u32], environment: &[(&str, &str)]) {
    for size in sizes {
        for output in World::start(*size, program, environment).finish() {
            output.assert_success();
            assert!(output.text.contains(" ok"), "{}", output.text);
        }
    }
}

#[test]
fn parts_of_tensors_arrive_at_their_ranks() {
    all_say_ok("exchange", &[1, 2, 4], &[]);
}

#[test]
fn weights_in_shards_have_the_gradients_of_whole_ones() {
    all_say_ok("sharded", &[1, 2, 3], &[]);
}

#[test]
fn experts_of_other_processes_give_the_bits_of_own_ones() {
    all_say_ok("experts", &[1, 2, 3], &[]);
}

#[cfg(feature = "fake-nccl")]
#[test]
fn memory_of_weights_in_shards_is_that_of_the_formula() {
    all_say_ok("sharded_memory", &[2, 3], &[]);
}

#[test]
fn ranks_agree_on_sums_and_on_trouble() {
    all_say_ok("agreement", &[1, 3], &[]);
}

#[test]
fn ranks_with_different_gradients_do_not_agree() {
    all_say_ok("digests", &[2, 3], &[]);
}

#[test]
fn hooks_and_given_layouts_equal_the_plain_reducer() {
    all_say_ok("reducers", &[1, 2], &[]);
}

#[test]
fn mismatched_bucket_layouts_are_errors_on_all_ranks() {
    all_say_ok("layouts", &[2], &[]);
}

#[test]
fn unused_parameters_of_a_rank_are_found() {
    all_say_ok("unused", &[2], &[]);
}

#[test]
fn sums_within_a_pass_equal_one_process() {
    for size in [2, 3] {
        for output in World::start(size, "sums", &[]).finish() {
            output.assert_success();
            let difference = output.number("difference");
            assert!(difference <= 1e-12, "world {size}: {difference:e}");
        }
    }
}

#[test]
fn killed_peer_in_an_exchange_is_an_error() {
    assert_lost_peer_is_reported("exchange_until_lost");
}

#[test]
fn killed_peer_in_a_pass_with_sums_is_an_error() {
    assert_lost_peer_is_reported("sums_until_lost");
}

#[test]
fn killed_peer_in_a_pass_in_shards_is_an_error() {
    assert_lost_peer_is_reported("sharded_until_lost");
}

#[test]
fn killed_peer_in_a_pass_with_experts_is_an_error() {
    assert_lost_peer_is_reported("experts_until_lost");
}

fn assert_lost_peer_is_reported(program: &str) {
    let mut world = World::start(3, program, &[]);
    world.wait_for_line(2, "step 4");
    world.kill(2);
    for survivor in &world.finish()[..2] {
        survivor.assert_success();
        assert!(survivor.text.contains("peer lost"), "{}", survivor.text);
    }
}

#[test]
fn collectives_give_every_rank_the_same_values() {
    for size in [1, 2, 4] {
        for output in World::start(size, "collectives", &[]).finish() {
            output.assert_success();
            assert!(output.text.contains("collectives ok"), "{}", output.text);
        }
    }
}

#[test]
fn ddp_with_uneven_shards_equals_one_process() {
    for size in [1, 2, 3] {
        for micro in ["1", "3"] {
            for output in World::start(size, "parity", &[("MICRO", micro)]).finish() {
                output.assert_success();
                let difference = output.number("difference");
                assert!(
                    difference <= 1e-6,
                    "world {size}, micro {micro}: {difference:e}"
                );
            }
        }
    }
}

#[test]
fn rank_measures_its_wait_for_a_slow_peer() {
    for output in World::start(3, "slow_rank", &[]).finish() {
        output.assert_success();
        assert!(output.text.contains("slow rank ok"), "{}", output.text);
    }
}

#[test]
fn power_sgd_equals_pytorchs_hook() {
    for output in World::start(2, "power_sgd", &[]).finish() {
        output.assert_success();
        assert!(output.number("difference") <= 1e-5, "{}", output.text);
    }
}

#[test]
fn power_sgd_sends_its_error_in_later_passes() {
    all_say_ok("power_sgd_memory", &[1, 2, 3], &[]);
}

#[test]
fn power_sgd_restores_degenerate_matrices() {
    all_say_ok("power_sgd_degenerate", &[1, 3], &[]);
}

#[test]
fn peer_lost_between_two_power_sgd_sums_is_an_error() {
    all_say_ok("power_sgd_half", &[2, 3], &[]);
}

#[test]
fn killed_peer_is_an_error_and_not_an_abort() {
    assert_killed_peer_is_reported(&[]);
}

#[test]
fn killed_peer_in_power_sgd_is_an_error_and_not_an_abort() {
    assert_killed_peer_is_reported(&[("HOOK", "PowerSGD")]);
}

fn assert_killed_peer_is_reported(environment: &[(&str, &str)]) {
    let mut world = World::start(3, "train_until_lost", environment);
    world.wait_for_line(2, "step 3");
    let killed = Instant::now();
    world.kill(2);
    let outputs = world.finish();
    assert!(
        killed.elapsed() < Duration::from_secs(20),
        "{:?}",
        killed.elapsed()
    );
    for survivor in &outputs[..2] {
        survivor.assert_success();
        assert!(survivor.text.contains("peer lost"), "{}", survivor.text);
    }
}

/// Not a test: the main function of the processes that the tests start.
#[test]
#[ignore = "started by the other tests"]
fn rank_main() {
    support::rank::main();
}
