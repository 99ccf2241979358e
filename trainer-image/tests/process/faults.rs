//! What happens to the others when one is lost or asked to leave.

use std::time::{Duration, Instant};

use roundhouse_contract::{Phase, Reason};
use serde_json::json;

use crate::checkpoints::{checkpoints, step_of};
use crate::harness::{Job, audit, config};

/// A training that would outlast the test.
fn endless() -> serde_json::Value {
    let mut config = config();
    config["steps"] = json!(10_000_000);
    config
}

fn training(job: &Job) {
    job.wait_for("committed steps", |status| {
        status.phase == Phase::Training && status.step > 5
    });
}

#[test]
fn all_processes_of_a_job_that_ends_leave_with_143() {
    let mut job = Job::train(&endless(), 2, 1);
    training(&job);
    job.signal(0, "-TERM");
    job.signal(1, "-TERM");
    assert_eq!(job.exit_codes(), [Some(143), Some(143)], "{}", job.logs());
    assert_eq!(job.failure(0, 0).reason, Reason::Left);
}

/// Waits for the end of the first step, whose successor then takes as long.
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
fn processes_asked_to_leave_in_a_step_of_six_seconds_end_and_save_it() {
    let mut job = Job::slow(&endless(), 2, 6);
    wait_for_a_long_step(&job);
    job.signal(0, "-TERM");
    job.signal(1, "-TERM");
    assert_eq!(job.exit_codes(), [Some(143), Some(143)], "{}", job.logs());
    let failure = job.failure(0, 0);
    assert_eq!(failure.reason, Reason::Left);
    // The step in which they were asked.
    assert!(failure.step >= 2, "{}", failure.step);
    assert_eq!(job.failure(1, 0).step, failure.step);
    assert_saved(&job, failure.step);
}

#[test]
fn a_process_that_leaves_in_a_step_of_six_seconds_does_not_break_it_off() {
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
fn a_process_in_the_lobby_leaves_when_asked() {
    let mut job = Job::start(&endless(), &crate::harness::digits(), 1, 1);
    job.wait_for("lobby", |status| status.phase == Phase::Lobby);
    job.signal(0, "-TERM");
    assert_eq!(job.exit_codes(), [Some(143)]);
}

#[test]
fn a_process_whose_peers_do_not_answer_leaves_all_the_same() {
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

#[test]
pub(crate) fn a_newer_generation_is_entered_at_a_step_boundary_without_losing_a_step() {
    let mut config = config();
    config["steps"] = json!(3_000);
    let mut job = Job::train(&config, 2, 1);
    training(&job);
    job.issue(2);
    job.wait_for("generation 2", |status| status.generation == 2);
    let switched = job.complete();
    assert!(
        job.status(0, 0)
            .is_some_and(|status| status.generation == 2 && status.step == 3_000)
    );
    let undisturbed = Job::train(&config, 2, 1).complete();
    assert!(
        switched == undisturbed,
        "the weights differ from those of one generation"
    );
}

#[test]
fn a_generation_from_before_the_start_is_not_joined() {
    let job = Job::restart(&endless(), 1, 4);
    job.wait_for("lobby", |status| status.phase == Phase::Lobby);
    job.issue(3);
    job.issue(5);
    job.wait_for("generation 5", |status| status.generation == 5);
}
