//! Sending the state to a rank that lacks it: ranks with the state keep it whatever happens
//! meanwhile. If no rank has the state, one rank reads a checkpoint.

use roundhouse_contract::{Phase, Reason};

use crate::g03_elastic::{assert_same, short};
use crate::g07_checkpoints::{
    EVERY, beyond, checkpoints, endless, train_and_kill, wait_for_checkpoint,
};
use crate::harness::{Job, assert_proven, every_steps};

/// The last step before the sender dies.
const STEP: u64 = 20;
/// Rank 2 of the first generation dies after step 20, so that a new generation forms at that step.
/// Rank 0 of the new generation dies when it has sent the first chunk.
const FAULTS: [(u32, &str); 2] = [(0, "0:20:State"), (2, "2:21:Forward")];
const SAMPLES: &str = "roundhouse_train_samples_total";
const STATE_BYTES: &str = "roundhouse_train_state_moved_bytes_total";
const READ_BYTES: &str = "roundhouse_train_checkpoint_read_bytes_total";

/// Three workers train. Then two of them train with a newcomer. When the sender is lost, one of
/// these two and the newcomer continue.
fn lose_the_sender(mut job: Job, what: &str) -> Job {
    let mut undisturbed = Job::train(&short(), 1, 1);
    undisturbed.complete();
    job.issue_to(1, &[0, 1, 2]);
    assert_eq!(job.exit_code(2), None, "{what}\n{}", job.logs());
    job.issue_to(2, &[0, 1, 3]);
    assert_eq!(job.exit_code(0), None, "{what}\n{}", job.logs());
    job.issue_to(3, &[1, 3]);
    for node in [1, 3] {
        let code = job.exit_code(node);
        assert_eq!(code, Some(0), "{what}\n{}", job.logs());
    }
    assert_same(&job, &undisturbed.weights(), what);
    // The survivor has repeated no step, and the newcomer has done no earlier step.
    let all = undisturbed.metric(0, SAMPLES);
    let done = |node| job.metric(node, SAMPLES);
    assert!((done(1) - all).abs() < 0.5, "{what}: {} of {all}", done(1));
    let before = 64.0 * STEP as f64;
    assert!((done(3) + before - all).abs() < 0.5, "{what}: {}", done(3));
    assert!(job.metric(3, STATE_BYTES) > job.metric(1, STATE_BYTES) / 4.0);
    job
}

#[test]
fn killed_sender_of_the_state_costs_no_step() {
    let volume = tempfile::tempdir().unwrap();
    let checkpoint = every_steps(volume.path().to_owned(), STEP);
    let job = Job::sharing(&short(), 4, &FAULTS, Some(checkpoint));
    let job = lose_the_sender(job, "with a checkpoint");
    assert_eq!(job.first_step_of(3), STEP + 1);
    assert_proven(volume.path(), 60);
}

#[test]
fn killed_sender_without_a_checkpoint_costs_no_step() {
    let job = Job::sharing(&short(), 4, &FAULTS, None);
    lose_the_sender(job, "without a checkpoint");
}

#[test]
fn killed_sender_over_nccl_costs_no_step() {
    let job = Job::over_nccl(&short(), 4, &FAULTS, 86_400);
    job.wait_for("the lobby", |status| status.phase.is_ready());
    lose_nothing_over_nccl(job);
}

/// Over NCCL, ranks notice a dead peer only through the next generation.
fn lose_nothing_over_nccl(job: Job) {
    let job = lose_the_sender(job, "over the fake NCCL");
    assert_eq!(job.first_step_of(3), STEP + 1);
    assert_proven(job.volume(), 60);
}

#[test]
fn lost_state_is_reported_and_training_does_not_restart() {
    let faults = [(0, "0:20:State"), (2, "1:21:Forward")];
    let mut job = Job::sharing(&short(), 4, &faults, None);
    job.issue_to(1, &[0, 2]);
    assert_eq!(job.exit_code(2), None, "{}", job.logs());
    job.issue_to(2, &[0, 1]);
    assert_eq!(job.exit_code(0), None, "{}", job.logs());
    // One worker has a part of the state, the other has none.
    job.issue_to(3, &[1, 3]);
    for node in [1, 3] {
        assert_eq!(job.exit_code(node as usize), Some(75), "{}", job.logs());
        let failure = job.failure(node, 0);
        assert_eq!(failure.reason, Reason::PeerLost);
        let words = "the state after step 20 of generation 1 is lost";
        assert!(failure.message.contains(words), "{}", failure.message);
    }
}

#[test]
fn worker_that_joins_survivors_reads_no_checkpoint() {
    let volume = tempfile::tempdir().unwrap();
    let mut job =
        Job::with_checkpoints(&endless(), 2, every_steps(volume.path().to_owned(), EVERY));
    job.issue_when_ready(1);
    wait_for_checkpoint(&job);
    job.signal(1, "-KILL");
    job.issue_to(2, &[0]);
    job.wait_for_nodes(&[0], "a step alone", |status| {
        (status.generation, status.phase) == (2, Phase::Training)
    });
    job.respawn(1);
    job.issue_to(3, &[0, 1]);
    job.wait_for("a step of both", |status| {
        (status.generation, status.phase) == (3, Phase::Training)
    });
    job.wait_until("metrics of the state", || job.metric(1, STATE_BYTES) > 0.0);
    for node in 0..2 {
        assert!(job.metric(node, READ_BYTES) < 0.5, "{}", job.logs());
    }
}

#[test]
fn resuming_workers_read_one_checkpoint_together() {
    let volume = tempfile::tempdir().unwrap();
    train_and_kill(2, volume.path(), 1);
    let config = beyond(volume.path());
    // This run saves no newer checkpoint.
    let newest = checkpoints(volume.path()).pop().unwrap();
    let parts = std::fs::read_dir(&newest).unwrap().map(|it| it.unwrap());
    let parts = parts.filter(|it| it.path().extension().is_some_and(|it| it == "safetensors"));
    let size: u64 = parts.map(|it| it.metadata().unwrap().len()).sum();
    let mut job = Job::with_checkpoints(&config, 3, every_steps(volume.path().to_owned(), EVERY));
    job.issue_when_ready(2);
    job.complete();
    let read: f64 = (0..3).map(|node| job.metric(node, READ_BYTES)).sum();
    assert!((read - size as f64).abs() < 0.5, "{read} of {size}");
}
