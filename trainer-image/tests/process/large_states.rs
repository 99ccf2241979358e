//! States that take long to send, and peers that a timer kills meanwhile: the others train in the
//! next generation, and no committed step is lost.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Job, audit, config, every_steps, without_evaluations};

/// Times between publishing a generation and killing a peer. Some peers die while ranks connect,
/// some while the state is sent, and some in a step.
const DELAYS_MILLIS: [u64; 6] = [0, 40, 80, 160, 320, 640];

/// A training with at least this size of weights and momenta in MiB.
fn training(mib: u64) -> Value {
    let num_weights = (mib << 20) / 8;
    let mut config = without_evaluations(config());
    config["model"]["hidden"] = json!([num_weights.isqrt() + 1, num_weights.isqrt() + 1]);
    config["globalBatchSize"] = json!(8);
    config["steps"] = json!(10_000_000);
    config
}

/// Workers 0 to 2. In each round two workers have the state and one does not, and a timer kills one
/// of the three.
fn peers_die_while_the_state_moves(mut job: Job, mib: u64, volume: &Path) {
    job.wait_for("the lobby", |status| status.phase.is_ready());
    job.passes(1, &[0, 1], 1);
    let (mut generation, mut newcomer) = (1, 2);
    let mut longest = Duration::ZERO;
    for (round, delay) in DELAYS_MILLIS.into_iter().enumerate() {
        let holders = job.others(newcomer);
        // The victim is the sender or the receiver.
        let victim = if round % 2 == 0 { holders[0] } else { newcomer };
        generation += 1;
        job.issue_to(generation, &[holders[0], holders[1], newcomer]);
        std::thread::sleep(Duration::from_millis(delay));
        job.signal(victim as usize, "-KILL");
        let killed = Instant::now();
        assert_eq!(job.exit_code(victim as usize), None);
        let others = job.others(victim);
        generation += 1;
        job.passes(generation, &others, 0);
        longest = longest.max(killed.elapsed());
        job.respawn(victim);
        newcomer = victim;
    }
    println!(
        "{mib} MiB: the others trained again within {} ms",
        longest.as_millis()
    );
    let left = job.others(newcomer);
    for node in &left {
        job.signal(*node as usize, "-TERM");
    }
    for node in left {
        assert_eq!(job.exit_code(node as usize), Some(143), "{}", job.logs());
    }
    let (code, text) = audit(volume);
    assert_eq!(code, Some(0), "{text}\n{}", job.logs());
    assert!(!text.contains("lost and done again"), "{text}");
}

fn over_gloo(mib: u64) {
    let volume = tempfile::tempdir().unwrap();
    let never = every_steps(volume.path().to_owned(), u64::MAX);
    let job = Job::with_checkpoints(&training(mib), 3, never);
    peers_die_while_the_state_moves(job, mib, volume.path());
}

fn over_nccl(mib: u64) {
    let volume = tempfile::tempdir().unwrap();
    let job = Job::with_checkpoints_over_nccl(&training(mib), 3, volume.path());
    peers_die_while_the_state_moves(job, mib, volume.path());
}

#[test]
fn peer_killed_while_64_mib_move_costs_no_step() {
    over_gloo(64);
}

#[test]
fn peer_killed_while_64_mib_move_over_nccl_costs_no_step() {
    over_nccl(64);
}

#[test]
#[ignore = "minutes and memory: make test-long"]
fn peer_killed_while_775_mib_move_costs_no_step() {
    over_gloo(775);
}

#[test]
#[ignore = "minutes and memory: make test-long"]
fn peer_killed_while_775_mib_move_over_nccl_costs_no_step() {
    over_nccl(775);
}

/// One process reads the checkpoint and the other receives the state, both in pieces.
#[test]
fn loading_a_large_state_needs_no_extra_memory() {
    const MIB: u64 = 256;
    let volume = tempfile::tempdir().unwrap();
    let peaks = |generation| {
        let never = every_steps(volume.path().to_owned(), u64::MAX);
        let mut job = Job::with_checkpoints(&training(MIB), 2, never);
        job.wait_for("the lobby", |status| status.phase.is_ready());
        job.passes(generation, &[0, 1], 1);
        let peaks = [0, 1].map(|rank| job.peak_mib(rank));
        for rank in 0..2 {
            job.signal(rank, "-TERM");
        }
        assert_eq!(job.exit_codes(), [Some(143), Some(143)], "{}", job.logs());
        (peaks, job.logs())
    };
    let (fresh, _) = peaks(1);
    let (resumed, logs) = peaks(2);
    println!(
        "a state of {MIB} MiB: {fresh:?} MiB at most in new processes, {resumed:?} MiB in those that load it"
    );
    assert!(logs.contains("loaded checkpoint"), "{logs}");
    let most = fresh.iter().max().unwrap() + MIB / 4;
    assert!(
        resumed.iter().all(|peak| *peak <= most),
        "{fresh:?} {resumed:?}"
    );
}
