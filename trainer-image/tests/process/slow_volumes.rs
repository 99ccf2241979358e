//! Volumes that are slow, or take nothing at all: no step waits for them, and the end of training as long as
//! anything moves.

use std::time::{Duration, Instant};

use roundhouse_contract::{Phase, Reason};
use serde_json::json;

use crate::checkpoints::{
    EVERY, checkpoints, endless, everything, train_and_kill, training, wait_for_checkpoint,
};
use crate::harness::{Job, assert_proven};
use crate::volumes::{every, go_on, leave_and_go_on, newest, patient, wait_until_saved_beyond};

#[test]
fn steps_do_not_wait_for_a_slow_volume_and_it_is_told() {
    let volume = tempfile::tempdir().unwrap();
    let path = volume.path();
    // Told of after one second.
    let job = patient(&endless(), path, 10, "");
    job.issue_when_ready(1);
    wait_for_checkpoint(&job);
    job.pace_volume("300");
    let trouble = job.wait_for_trouble("the volume is slow");
    let saving = trouble.split("of step ").nth(1).unwrap();
    let saving: u64 = saving.split(' ').next().unwrap().parse().unwrap();
    let step = job.status(0, 0).unwrap().step;
    // In one second a step that waits for each access to the volume would come three times.
    assert!(step > saving + 20, "{step}: {trouble}");
    job.wait_until("a checkpoint that is left out", || {
        job.metric(0, "roundhouse_train_checkpoints_skipped_total") >= 1.0
    });
    println!("{} steps committed while {trouble}", step - saving);
    let before = newest(path).unwrap();
    job.pace_volume("0");
    wait_until_saved_beyond(&job, before);
    leave_and_go_on(job, path, 2);
}

#[test]
fn steps_do_not_wait_for_a_volume_that_hangs_and_it_is_used_when_it_is_back() {
    let volume = tempfile::tempdir().unwrap();
    let path = volume.path();
    let job = patient(&endless(), path, 10, "");
    job.issue_when_ready(1);
    wait_for_checkpoint(&job);
    job.pace_volume("hold");
    let trouble = job.wait_for_trouble("has taken nothing");
    assert!(trouble.starts_with(path.to_str().unwrap()), "{trouble}");
    let before = newest(path).unwrap();
    let step = job.status(0, 0).unwrap().step;
    // Longer than the end of training would wait for it.
    job.wait_for_trouble("for 10 s");
    let done = job.status(0, 0).unwrap().step - step;
    assert!(done > 100, "{done}");
    println!("{done} steps committed in 9 s while a save hangs");
    assert_eq!(newest(path), Some(before));
    job.pace_volume("0");
    wait_until_saved_beyond(&job, before);
    leave_and_go_on(job, path, 2);
}

#[test]
fn a_result_that_a_volume_does_not_take_ends_the_training_by_name() {
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
        let words = ["has taken nothing", path.to_str().unwrap()];
        let says = words.iter().all(|words| failure.message.contains(words));
        assert!(says, "{}", failure.message);
    }
    assert!(newest(path) < training()["steps"].as_u64());
    go_on(path, 2);
}

#[test]
fn a_result_may_take_as_long_as_bytes_move() {
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
fn a_rank_that_is_asked_to_leave_does_not_wait_for_a_volume_for_ever() {
    let volume = tempfile::tempdir().unwrap();
    let path = volume.path();
    let mut job = patient(&endless(), path, 600, "");
    job.issue_when_ready(1);
    wait_for_checkpoint(&job);
    job.pace_volume("hold");
    // Who left at a step that is saved would have nothing to wait for.
    let held_at = job.status(0, 0).unwrap().step;
    job.wait_for("steps that are not saved", |status| {
        status.step > held_at + EVERY
    });
    let asked_at = Instant::now();
    for rank in 0..2 {
        job.signal(rank, "-TERM");
    }
    assert_eq!(job.exit_codes(), [Some(143), Some(143)], "{}", job.logs());
    // Less than the agent waits.
    assert!(asked_at.elapsed() < Duration::from_secs(25));
    // The signals come one after the other: if one rank leaves before the other is asked to, that one has the state.
    let messages = [0, 1].map(|node| job.failure(node, 0).message);
    let late = messages
        .iter()
        .any(|it| it.contains("was not saved in time"));
    assert!(late, "{messages:?}");
    go_on(path, 2);
}

#[test]
fn a_volume_that_hangs_when_a_process_starts_is_named() {
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
fn a_volume_that_hangs_through_several_generations_holds_up_none_of_them() {
    let volume = tempfile::tempdir().unwrap();
    let path = volume.path();
    let mut job = Job::patient(&endless(), 3, every(path), 10, "");
    job.issue_when_ready(1);
    wait_for_checkpoint(&job);
    job.pace_volume("hold");
    job.wait_for_trouble("has taken nothing");
    let before = newest(path).unwrap();
    // With each rank that dies a save is abandoned, which holds up a buffer.
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
    assert_eq!(everything(path), checkpoints(path), "something is left");
    go_on(path, 5);
}
