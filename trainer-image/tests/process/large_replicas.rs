//! Replicas whose processes are in several pods: a failure in one pod ends its replica, the others
//! train on, and the replica returns with the state of another one.

use std::path::Path;

use roundhouse_contract::Phase;
use serde_json::{Value, json};
use tch::Tensor;

use crate::g05_parity::difference;
use crate::harness::{Job, assert_proven, config};

const STEPS: u64 = 120;
/// The tolerance per hundred steps, relative to the largest weight of each tensor.
const TOLERANCE: f64 = 1e-6;

/// A training whose state is divided among the processes of a replica.
pub(crate) fn sharded(stage: &str) -> Value {
    let mut config = config();
    config["steps"] = json!(STEPS);
    config["slices"] = json!(8);
    config["parallel"] = json!({"shard": stage});
    config
}

/// The weights of one process.
pub(crate) fn undisturbed(mut config: Value) -> Vec<(String, Tensor)> {
    config.as_object_mut().unwrap().remove("parallel");
    let mut job = Job::train(&config, 1, 1);
    job.complete();
    job.weights()
}

fn assert_same(job: &Job, expected: &[(String, Tensor)]) {
    let found = difference(&job.weights(), expected);
    assert!(
        found <= TOLERANCE * STEPS as f64 / 100.0,
        "the weights differ by {found:e}\n{}",
        job.logs()
    );
}

#[test]
fn replicas_of_two_pods_train_what_one_process_does() {
    let volume = tempfile::tempdir().unwrap();
    for stage in ["Zero1", "Zero3"] {
        let volume = volume.path().join(stage);
        let mut job = Job::of_replicas(&sharded(stage), 2, 2, &volume);
        job.complete();
        let expected = undisturbed(sharded(stage));
        assert!(
            difference(&job.weights(), &expected) == 0.0,
            "{stage}: not bit for bit"
        );
        assert_proven(&volume, STEPS);
    }
}

/// Two replicas of two pods, one of which has lost the process of the `victim` in the middle of the
/// training and is in the lobby in its second life.
fn with_replica_in_lobby(victim: u32, signal: &str, volume: &Path) -> Job {
    let mut job = Job::of_replicas(&sharded("Zero3"), 2, 2, volume);
    job.pace_steps(20);
    let (broken, others) = (job.workers_of(victim / 2), job.workers_of(1 - victim / 2));
    job.wait_for_nodes(&others, "some steps", |status| status.step > 10);
    job.signal(victim as usize, signal);
    // The operator learns of it, and the other replica trains on at once.
    job.passes(2, &others, 5);
    job.begin_life(victim / 2, 2);
    job.wait_for_nodes(&broken, "the replica in the lobby", |status| {
        status.phase == Phase::Lobby
    });
    job
}

/// Ends the process of a worker, and lets its replica return.
fn survives(victim: u32, signal: &str) {
    let volume = tempfile::tempdir().unwrap();
    let mut job = with_replica_in_lobby(victim, signal, volume.path());
    let (broken, others) = (job.workers_of(victim / 2), job.workers_of(1 - victim / 2));
    let all: Vec<u32> = others.iter().chain(&broken).copied().collect();
    job.passes(3, &all, 5);
    job.pace_steps(0);
    let codes = job.exit_codes();
    assert!(
        codes.iter().all(|code| *code == Some(0)),
        "{codes:?}\n{}",
        job.logs()
    );
    assert_same(&job, &undisturbed(sharded("Zero3")));
    assert_proven(volume.path(), STEPS);
}

#[test]
fn replica_whose_first_pod_dies_returns() {
    survives(0, "-KILL");
}

#[test]
fn replica_whose_second_pod_dies_returns() {
    survives(3, "-KILL");
}

#[test]
fn replica_of_a_frozen_pod_returns() {
    survives(1, "-STOP");
}

#[test]
fn process_of_a_replica_that_lost_a_pod_ends() {
    let volume = tempfile::tempdir().unwrap();
    let mut job = Job::of_replicas(&sharded("Zero3"), 1, 2, volume.path());
    // Otherwise the training may be over.
    job.pace_steps(20);
    job.wait_for("some steps", |status| status.step > 10);
    job.signal(1, "-KILL");
    assert_eq!(job.exit_code(0), Some(75), "{}", job.logs());
}

#[test]
fn process_in_the_lobby_ends_if_a_sibling_does() {
    let volume = tempfile::tempdir().unwrap();
    let mut job = with_replica_in_lobby(0, "-KILL", volume.path());
    job.signal(1, "-KILL");
    assert_eq!(job.exit_code(0), Some(75), "{}", job.logs());
}

#[test]
fn drained_pod_takes_its_replica_along_and_no_step_is_lost() {
    let volume = tempfile::tempdir().unwrap();
    let mut job = Job::of_replicas(&sharded("Zero3"), 1, 2, volume.path());
    job.pace_steps(20);
    job.wait_for("some steps", |status| status.step > 25);
    // Only the processes of one pod receive the signal.
    job.signal(1, "-TERM");
    assert_eq!(job.exit_codes(), [Some(143), Some(143)], "{}", job.logs());
    let (step, logs) = (job.step(), job.logs());
    let saved = format!("stopped after step {step}; a checkpoint holds its state");
    assert_eq!(logs.matches(&saved).count(), 2, "{logs}");
    let entries = std::fs::read_dir(volume.path().join("checkpoints")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names: Vec<String> = names.collect();
    let is_it = |name: &&String| name.ends_with(&step.to_string());
    assert_eq!(names.iter().filter(is_it).count(), 1, "{names:?}");
}
