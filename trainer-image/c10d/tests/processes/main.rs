//! Real processes over Gloo on the loopback: values of collectives, parity of DDP with one process,
//! and what survivors see when a peer is killed.
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

/// Runs a program that asserts for itself on worlds of these sizes.
fn all_say_ok(program: &str, sizes: &[u32], environment: &[(&str, &str)]) {
    for size in sizes {
        for output in World::start(*size, program, environment).finish() {
            output.assert_success();
            assert!(output.text.contains(" ok"), "{}", output.text);
        }
    }
}

#[test]
fn parts_of_tensors_arrive_where_they_belong() {
    all_say_ok("exchange", &[1, 2, 4], &[]);
}

#[test]
fn ranks_agree_on_sums_and_on_trouble() {
    all_say_ok("agreement", &[1, 3], &[]);
}

#[test]
fn ranks_agree_only_on_what_is_equal_on_all_of_them_whatever_hook_has_summed_it() {
    all_say_ok("digests", &[2, 3], &[]);
}

#[test]
fn hooks_and_given_layouts_give_the_gradients_of_the_plain_reducer() {
    all_say_ok("reducers", &[1, 2], &[]);
}

#[test]
fn layouts_of_buckets_that_do_not_fit_are_errors_on_all_ranks() {
    all_say_ok("layouts", &[2], &[]);
}

#[test]
fn parameters_that_a_rank_does_not_use_are_found() {
    all_say_ok("unused", &[2], &[]);
}

#[test]
fn sums_within_a_pass_have_the_gradients_of_one_process_also_with_an_empty_share() {
    for size in [2, 3] {
        for output in World::start(size, "sums", &[]).finish() {
            output.assert_success();
            let difference = output.number("difference");
            assert!(difference <= 1e-12, "world {size}: {difference:e}");
        }
    }
}

#[test]
fn a_peer_killed_in_an_exchange_is_an_error() {
    assert_loss_is_told("exchange_for_ever");
}

#[test]
fn a_peer_killed_within_a_pass_that_shares_sums_is_an_error() {
    assert_loss_is_told("sums_for_ever");
}

fn assert_loss_is_told(program: &str) {
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
fn ddp_with_uneven_shards_and_micro_batches_equals_one_process() {
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
fn a_rank_with_early_gradients_knows_how_long_it_waits() {
    for output in World::start(3, "slow_rank", &[]).finish() {
        output.assert_success();
        assert!(output.text.contains("slow rank ok"), "{}", output.text);
    }
}

#[test]
fn gradients_of_low_rank_are_those_of_pytorchs_hook() {
    for output in World::start(2, "power_sgd", &[]).finish() {
        output.assert_success();
        assert!(output.number("difference") <= 1e-5, "{}", output.text);
    }
}

#[test]
fn what_low_rank_leaves_over_is_sent_later_unless_its_pass_is_not_used() {
    all_say_ok("power_sgd_memory", &[1, 2, 3], &[]);
}

#[test]
fn gradients_without_low_rank_parts_are_sent_as_they_are() {
    all_say_ok("power_sgd_degenerate", &[1, 3], &[]);
}

#[test]
fn a_peer_that_is_gone_between_the_two_sums_of_a_bucket_is_an_error() {
    all_say_ok("power_sgd_half", &[2, 3], &[]);
}

#[test]
fn a_killed_peer_is_an_error_and_not_an_abort() {
    assert_kill_is_told(&[]);
}

#[test]
fn a_peer_killed_while_low_rank_gradients_are_summed_is_an_error_and_not_an_abort() {
    assert_kill_is_told(&[("HOOK", "PowerSGD")]);
}

fn assert_kill_is_told(environment: &[(&str, &str)]) {
    let mut world = World::start(3, "train_for_ever", environment);
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

/// Not a test: what the processes of the tests above run.
#[test]
#[ignore = "started by the other tests"]
fn rank_main() {
    support::rank::main();
}
