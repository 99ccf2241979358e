//! Rank 0, which hosts the store, is stopped while a generation forms: its kernel still accepts
//! connections, but the process does not answer. The next generation frees the others without a
//! restart.

use std::time::{Duration, Instant};

use roundhouse_contract::{ExitCode, Phase};
use serde_json::{Value, json};

use crate::g03_elastic::{assert_same, undisturbed};
use crate::harness::{Job, assert_proven, config, without_evaluations};

const STEPS: u64 = 3_000;
/// Far below all timeouts that would end a wait for the stopped process.
const SOON: Duration = Duration::from_secs(10);

fn training() -> Value {
    let mut config = config();
    config["steps"] = json!(STEPS);
    without_evaluations(config)
}

/// Worker 0 is stopped, and the others wait in a generation that needs it. They continue in the
/// next generation. Then worker 0 continues; it must neither commit nor delay the others.
fn continue_without_it(mut job: Job, generation: u64, what: &str) {
    // Wait until the others wait for worker 0.
    job.wait_for_nodes(&[1], "a generation that needs worker 0", |status| {
        status.phase == Phase::Forming
    });
    let issued_at = Instant::now();
    job.issue_to(generation, &[1, 2]);
    job.wait_for_nodes(&[1, 2], "a step without it", |status| {
        status.generation == generation && status.phase == Phase::Training
    });
    let elapsed = issued_at.elapsed();
    println!("{what}: the others continue after {elapsed:.1?}");
    assert!(elapsed < SOON, "{what}: {elapsed:?}");
    let reached = job.status(1, 0).unwrap().step;
    job.pace_steps(1);
    job.signal(0, "-CONT");
    job.wait_for_nodes(&[1, 2], "more steps beside it", |status| {
        status.step > reached + 100
    });
    let now = job.status(0, 0).unwrap();
    assert!(
        now.generation < generation && now.step <= reached,
        "{what}: {now:?}"
    );
    job.pace_steps(0);
    job.dismiss(generation, 0);
    let code = job.exit_code(0);
    assert!(ends_as_superseded(code), "{what}: {code:?}\n{}", job.logs());
    for node in [1, 2] {
        assert_eq!(job.exit_code(node), Some(0), "{what}\n{}", job.logs());
    }
    assert_same(&job, &undisturbed(&training()), what);
    assert_proven(job.volume(), STEPS);
}

/// Whether the process has left on request, or has found a newer generation on the volume first.
fn ends_as_superseded(code: Option<i32>) -> bool {
    [ExitCode::Left, ExitCode::PeerLost]
        .iter()
        .any(|expected| Some(expected.code()) == code)
}

#[test]
fn rank_0_stopped_before_others_reach_its_store() {
    let job = Job::freezing(&training(), 3, 0, "never");
    job.issue_when_ready(1);
    job.wait_for("committed steps", |status| status.step > 5);
    job.signal(0, "-STOP");
    job.wait_until_stopped(0);
    job.issue(2);
    continue_without_it(job, 3, "before they connect to its store");
}

#[test]
fn rank_0_stopped_while_others_gather_is_left_behind() {
    let job = Job::freezing(&training(), 3, 0, "never");
    job.wait_for("the lobby", |status| status.phase.is_ready());
    job.publish(1, &[0, 1, 2], &[0, 1]);
    job.wait_for_nodes(&[0, 1], "two of three at the store", |status| {
        status.phase == Phase::Forming
    });
    job.signal(0, "-STOP");
    job.wait_until_stopped(0);
    continue_without_it(job, 2, "while they gather");
}

#[test]
fn rank_0_stopped_while_others_connect_is_left_behind() {
    let job = Job::freezing(&training(), 3, 0, "0:2:Connect");
    job.issue_when_ready(1);
    job.wait_for("committed steps", |status| status.step > 5);
    job.issue(2);
    job.wait_until_stopped(0);
    continue_without_it(job, 3, "while they connect");
}
