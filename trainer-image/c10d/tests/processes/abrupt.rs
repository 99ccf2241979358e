//! Peers that a timer kills in the middle of a large message. The survivors must be free soon after
//! their group is aborted, whatever the timeout of the collective is.

use std::time::{Duration, Instant};

use crate::support::World;
use crate::support::abrupt::{ABORT, REQUESTS};

const LONG_TIMEOUT: (&str, &str) = ("TIMEOUT_MS", "120000");
/// The survivors are usually free within 2 s. The limit is larger because other tests load the
/// machine.
const DEADLINE: Duration = Duration::from_secs(20);
/// Delays after the start of a message, which takes some tens of milliseconds or longer.
const DELAYS_MS: [u64; 2] = [5, 19];

/// How the survivors notice that the group has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    /// Another thread aborts the group, as the member's interrupter does.
    Aborted,
    /// The group itself reports the failure.
    Noticed,
}

fn assert_survivors_are_free(
    size: u32,
    killed: usize,
    movement: &str,
    mib: &str,
    ends: Ends,
    environment: &[(&str, &str)],
) {
    for delay in DELAYS_MS {
        let mut all = vec![("MOVE", movement), ("MIB", mib), LONG_TIMEOUT];
        all.extend_from_slice(environment);
        if ends == Ends::Noticed {
            all.push(("NOTICES", "1"));
        }
        let mut world = World::start(size, "move_until_aborted", &all);
        world.wait_for_line(killed, "step 2");
        std::thread::sleep(Duration::from_millis(delay));
        world.kill(killed);
        let since = Instant::now();
        if ends == Ends::Aborted {
            let store = world
                .store
                .prefix("gen1")
                .unwrap()
                .prefix(REQUESTS)
                .unwrap();
            store.add(ABORT, 1).unwrap();
        }
        let outputs = world.finish();
        let took = since.elapsed();
        for (rank, output) in outputs.iter().enumerate() {
            if rank != killed {
                output.assert_success();
                assert!(output.text.contains("peer lost"), "{}", output.text);
            }
        }
        assert!(
            took < DEADLINE,
            "{movement} of {mib} MiB, rank {killed} of {size} killed after {delay} ms: {took:?}"
        );
    }
}

#[test]
fn killed_receiver_of_a_message_frees_the_others() {
    for (size, killed) in [(2, 1), (3, 2)] {
        assert_survivors_are_free(size, killed, "broadcast", "64", Ends::Aborted, &[]);
    }
}

#[test]
fn killed_sender_of_a_message_frees_the_others() {
    for size in [2, 3] {
        assert_survivors_are_free(size, 0, "broadcast", "64", Ends::Aborted, &[]);
    }
}

#[test]
fn killed_peer_is_noticed_without_an_abort() {
    for killed in [0, 2] {
        assert_survivors_are_free(3, killed, "broadcast", "64", Ends::Noticed, &[]);
    }
}

#[test]
fn killed_peer_of_a_very_large_message_frees_the_others() {
    for killed in [0, 1] {
        assert_survivors_are_free(2, killed, "broadcast", "256", Ends::Noticed, &[]);
    }
}

#[test]
fn killed_peer_of_a_large_sum_frees_the_others() {
    for (size, movement, killed) in [
        (3, "sum", 1),
        (2, "send", 0),
        (2, "send", 1),
        (3, "exchange", 1),
        (3, "each", 0),
        (3, "each", 1),
    ] {
        assert_survivors_are_free(size, killed, movement, "64", Ends::Noticed, &[]);
    }
}

#[test]
fn killed_peer_in_a_chain_frees_the_others() {
    for (size, killed) in [(2, 0), (2, 1), (3, 1)] {
        assert_survivors_are_free(size, killed, "pass", "64", Ends::Noticed, &[]);
    }
}

#[cfg(feature = "fake-nccl")]
#[test]
fn killed_peer_in_a_chain_over_nccl_frees_the_others() {
    let nccl = [("BACKEND", "nccl")];
    assert_survivors_are_free(3, 1, "pass", "64", Ends::Aborted, &nccl);
}

#[cfg(feature = "fake-nccl")]
#[test]
fn killed_peer_of_a_message_over_nccl_frees_the_others() {
    for (size, killed) in [(2, 1), (3, 0)] {
        let nccl = [("BACKEND", "nccl")];
        assert_survivors_are_free(size, killed, "broadcast", "64", Ends::Aborted, &nccl);
        assert_survivors_are_free(size, killed, "each", "64", Ends::Aborted, &nccl);
    }
}
