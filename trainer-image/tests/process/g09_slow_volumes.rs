//! Volumes that are slow or accept no bytes: no step waits for them. The end of training waits for
//! as long as bytes are written.

use std::time::{Duration, Instant};

use roundhouse_contract::{Phase, Reason};
use serde_json::json;

use crate::g07_checkpoints::{
    EVERY, checkpoints, endless, everything, train_and_kill, training, wait_for_checkpoint,
};
use crate::g09_volumes::{
    every, leave_and_resume, newest, patient, resume, wait_until_saved_beyond,
};
use crate::harness::{Job, assert_proven};

#[test]
fn slow_volume_is_reported_and_delays_no_step() {
    let volume = tempfile::tempdir().unwrap();
    let path = volume.path();
    // The report comes after 1 s.
    let job = patient(&endless(), path, 10, "");
    job.issue_when_ready(1);
    wait_for_checkpoint(&job);
    job.pace_volume("300");
    let trouble = job.wait_for_trouble("the volume is slow");
    let saving = trouble.split("of step ").nth(1).unwrap();
    let saving: u64 = saving.split(' ').next().unwrap().parse().unwrap();
    let step = job.status(0, 0).unwrap().step;
    // If a step waited for each access to the volume, there would be three steps per second.
    assert!(step > saving + 20, "{step}: {trouble}");
    job.wait_until("a checkpoint that is left out", || {
        job.metric(0, "roundhouse_train_checkpoints_skipped_total") >= 1.0
    });
    println!("{} steps committed while {trouble}", step - saving);
    let before = newest(path).unwrap();
    job.pace_volume("0");
    wait_until_saved_beyond(&job, before);
    leave_and_resume(job, path, 2);
}

#[test]
fn hanging_volume_delays_no_step_and_is_used_later() {
    let volume = tempfile::tempdir().unwrap();
    let path = volume.path();
    let job = patient(&endless(), path, 10, "");
    job.issue_when_ready(1);
    wait_for_checkpoint(&job);
    job.pace_volume("hold");
    let trouble = job.wait_for_trouble("has accepted no byte");
    assert!(trouble.starts_with(path.to_str().unwrap()), "{trouble}");
    let before = newest(path).unwrap();
    let step = job.status(0, 0).unwrap().step;
    // Longer than the end of training would wait.
    job.wait_for_trouble("for 10 s");
    let done = job.status(0, 0).unwrap().step - step;
    assert!(done > 100, "{done}");
    println!("{done} steps committed in 9 s while a save hangs");
    assert_eq!(newest(path), Some(before));
    job.pace_volume("0");
    wait_until_saved_beyond(&job, before);
    leave_and_resume(job, path, 2);
}

#[test]
fn result_that_is_not_written_ends_the_training() {
    let volume = tempfile::tempdir().unwrap();
    let path = volume.path();
    let mut job = patient(&training(), path, 2, "");
    job.issue_when_ready(1);
    wait_for_checkpoint(&job);
    job.pace_volume("hold");
    assert_eq!(job.exit_codes(), [Some(74), Some(74)], "{}", job.logs());
    for node in 0..2 {
        let failure = job.failure(node, 0);
        assert_eq!(failure.reason, Reason::VolumeFailed);
        let words = ["has accepted no byte", path.to_str().unwrap()];
        let says = words.iter().all(|words| failure.message.contains(words));
        assert!(says, "{}", failure.message);
    }
    assert!(newest(path) < training()["steps"].as_u64());
    resume(path, 2);
}

#[test]
fn final_save_may_take_as_long_as_bytes_are_written() {
    let volume = tempfile::tempdir().unwrap();
    let path = volume.path();
    let mut config = training();
    config["steps"] = json!(EVERY - 1);
    let mut job = patient(&config, path, 2, "600");
    job.issue_when_ready(1);
    job.wait_for("the last save", |status| status.phase == Phase::Saving);
    let began = Instant::now();
    job.complete();
    assert!(
        began.elapsed() > Duration::from_secs(3),
        "{:?}",
        began.elapsed()
    );
    assert_proven(path, EVERY - 1);
    let moves = job.status(0, 0).unwrap().volume_moves;
    assert!(moves > 1_000, "the watchdog could not see that: {moves}");
}

#[test]
fn leaving_rank_does_not_wait_indefinitely_for_a_volume() {
    let volume = tempfile::tempdir().unwrap();
    let path = volume.path();
    let mut job = patient(&endless(), path, 600, "");
    job.issue_when_ready(1);
    wait_for_checkpoint(&job);
    job.pace_volume("hold");
    // A rank that leaves at a saved step would have nothing to wait for.
    let held_at = job.status(0, 0).unwrap().step;
    job.wait_for("steps that are not saved", |status| {
        status.step > held_at + EVERY
    });
    let asked_at = Instant::now();
    for rank in 0..2 {
        job.signal(rank, "-TERM");
    }
    assert_eq!(job.exit_codes(), [Some(143), Some(143)], "{}", job.logs());
    // Less time than the agent waits.
    assert!(asked_at.elapsed() < Duration::from_secs(25));
    // The signals are sent one after the other. If one rank leaves before the other rank gets its
    // signal, the other rank has the state.
    let messages = [0, 1].map(|node| job.failure(node, 0).message);
    let late = messages
        .iter()
        .any(|it| it.contains("was not saved in time"));
    assert!(late, "{messages:?}");
    resume(path, 2);
}

#[test]
fn volume_that_hangs_at_the_start_is_named() {
    let volume = tempfile::tempdir().unwrap();
    train_and_kill(2, volume.path(), 1);
    let mut job = patient(&endless(), volume.path(), 2, "hold");
    assert_eq!(job.exit_codes(), [Some(74), Some(74)], "{}", job.logs());
    let failure = job.failure(0, 0);
    assert_eq!(failure.reason, Reason::VolumeFailed);
    assert!(
        failure.message.contains("has not answered"),
        "{}",
        failure.message
    );
}

#[test]
fn hanging_volume_delays_no_generation() {
    let volume = tempfile::tempdir().unwrap();
    let path = volume.path();
    let mut job = Job::patient(&endless(), 3, every(path), 10, "");
    job.issue_when_ready(1);
    wait_for_checkpoint(&job);
    job.pace_volume("hold");
    job.wait_for_trouble("has accepted no byte");
    let before = newest(path).unwrap();
    // Each dead rank abandons a save, which occupies a buffer.
    for (generation, dies) in [(2, Some(2)), (3, Some(1)), (4, None)] {
        if let Some(rank) = dies {
            job.signal(rank, "-KILL");
            assert_eq!(job.exit_code(rank), None);
        }
        let members: &[u32] = if generation == 2 { &[0, 1] } else { &[0] };
        job.passes(generation, members, 2 * EVERY);
    }
    job.wait_for_trouble("of an earlier checkpoint");
    job.pace_volume("0");
    wait_until_saved_beyond(&job, before);
    job.signal(0, "-TERM");
    assert_eq!(job.exit_code(0), Some(143), "{}", job.logs());
    assert_eq!(
        everything(path),
        checkpoints(path),
        "an incomplete checkpoint remains"
    );
    resume(path, 5);
}
