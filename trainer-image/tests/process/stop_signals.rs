//! Processes that get SIGTERM: they finish their step, save, and exit with code 143.

use std::time::{Duration, Instant};

use roundhouse_contract::{Phase, Reason};

use crate::g07_checkpoints::{checkpoints, endless, step_of};
use crate::harness::{Job, audit};

fn training(job: &Job) {
    job.wait_for("committed steps", |status| {
        status.phase == Phase::Training && status.step > 5
    });
}

#[test]
fn processes_of_an_ended_job_exit_with_143() {
    let mut job = Job::train(&endless(), 2, 1);
    training(&job);
    job.signal(0, "-TERM");
    job.signal(1, "-TERM");
    assert_eq!(job.exit_codes(), [Some(143), Some(143)], "{}", job.logs());
    assert_eq!(job.failure(0, 0).reason, Reason::Left);
}

/// Waits for the end of the first step; the next step takes as long.
fn wait_for_a_long_step(job: &Job) {
    job.wait_for("a step", |status| status.step > 0);
}

fn assert_saved(job: &Job, step: u64) {
    let saved = checkpoints(job.volume());
    assert_eq!(saved.last().map(|path| step_of(path)), Some(step));
    let (code, text) = audit(job.volume());
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn processes_finish_and_save_a_step_of_six_seconds() {
    let mut job = Job::slow(&endless(), 2, 6);
    wait_for_a_long_step(&job);
    job.signal(0, "-TERM");
    job.signal(1, "-TERM");
    assert_eq!(job.exit_codes(), [Some(143), Some(143)], "{}", job.logs());
    let failure = job.failure(0, 0);
    assert_eq!(failure.reason, Reason::Left);
    // The step in which the signal arrived.
    assert!(failure.step >= 2, "{}", failure.step);
    assert_eq!(job.failure(1, 0).step, failure.step);
    assert_saved(&job, failure.step);
}

#[test]
fn leaving_process_finishes_a_step_of_six_seconds() {
    let mut job = Job::slow(&endless(), 2, 6);
    wait_for_a_long_step(&job);
    job.signal(1, "-TERM");
    job.dismiss(2, 1);
    job.issue_to(2, &[0]);
    assert_eq!(job.exit_code(1), Some(143), "{}", job.logs());
    let failure = job.failure(1, 0);
    assert_eq!(failure.reason, Reason::Left);
    assert!(failure.step >= 2, "{}\n{}", failure.step, job.logs());
    job.pace_steps(0);
    job.wait_for_nodes(&[0], "steps without it", |status| {
        status.generation == 2 && status.step > failure.step
    });
    assert_eq!(job.first_step_of(2), failure.step + 1);
    job.signal(0, "-TERM");
    assert_eq!(job.exit_code(0), Some(143), "{}", job.logs());
    assert_saved(&job, job.failure(0, 0).step);
}

#[test]
fn process_in_the_lobby_leaves_at_once() {
    let mut job = Job::start(&endless(), &crate::harness::digits(), 1, 1);
    job.wait_for("lobby", |status| status.phase == Phase::Lobby);
    job.signal(0, "-TERM");
    assert_eq!(job.exit_codes(), [Some(143)]);
}

#[test]
fn process_with_silent_peers_leaves() {
    let mut job = Job::train(&endless(), 2, 1);
    training(&job);
    job.signal(1, "-STOP");
    job.signal(0, "-TERM");
    let asked_at = Instant::now();
    assert_eq!(job.exit_code(0), Some(143), "{}", job.logs());
    assert!(
        asked_at.elapsed() < Duration::from_secs(20),
        "{:?}",
        asked_at.elapsed()
    );
    assert_eq!(job.failure(0, 0).reason, Reason::Left);
}
