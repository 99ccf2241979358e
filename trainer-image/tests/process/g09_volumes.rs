//! Real volumes that are full, read-only or frozen: training continues, the trouble is reported,
//! earlier checkpoints stay complete, and a job whose result is not saved does not succeed.

use std::path::Path;

use roundhouse_contract::environment::CheckpointEnvironment;
use roundhouse_contract::{Phase, Reason};
use serde_json::{Value, json};

use crate::g03_elastic::{assert_same, undisturbed};
use crate::g07_checkpoints::{
    EVERY, beyond, checkpoints, endless, everything, start, step_of, train_and_kill, training,
    wait_for_checkpoint,
};
use crate::harness::{Job, assert_proven, audit, every_steps};
use crate::mount::{Volume, fill};

/// Size of the volume in KiB.
const KIB: u32 = 8 * 1024;

pub(crate) fn every(volume: &Path) -> CheckpointEnvironment {
    every_steps(volume.to_owned(), EVERY)
}

/// Starts two workers with this I/O timeout of the volume.
pub(crate) fn patient(config: &Value, volume: &Path, seconds: u64, pace: &str) -> Job {
    Job::patient(config, 2, every(volume), seconds, pace)
}

pub(crate) fn newest(volume: &Path) -> Option<u64> {
    checkpoints(volume).last().map(|path| step_of(path))
}

pub(crate) fn wait_until_saved_beyond(job: &Job, step: u64) {
    job.wait_for_nodes(&[0], "a newer checkpoint, and no trouble", |status| {
        let progress = status.progress.as_ref();
        progress.is_some_and(|progress| {
            progress.checkpoint_step > Some(step) && progress.checkpoint_error.is_none()
        })
    });
}

/// All ranks leave and save. The next processes continue from the checkpoint, and the ledger is
/// proven.
pub(crate) fn leave_and_resume(mut job: Job, volume: &Path, generation: u64) {
    for rank in 0..2 {
        job.signal(rank, "-TERM");
    }
    assert_eq!(job.exit_codes(), [Some(143), Some(143)], "{}", job.logs());
    assert_eq!(
        everything(volume),
        checkpoints(volume),
        "an incomplete checkpoint remains"
    );
    resume(volume, generation);
}

/// Continues from the newest checkpoint, which must be complete, to the end.
pub(crate) fn resume(volume: &Path, generation: u64) {
    let config = beyond(volume);
    let mut job = start(&config, 2, volume, generation);
    job.complete();
    let logs = job.logs();
    assert!(
        logs.contains("loaded checkpoint") && !logs.contains("skipping a checkpoint"),
        "{logs}"
    );
    assert_proven(volume, config["steps"].as_u64().unwrap());
}

#[test]
fn full_volume_is_reported_and_used_again_later() {
    let Some(volume) = Volume::of_memory(KIB) else {
        return;
    };
    let path = volume.path();
    let job = start(&endless(), 2, &path, 1);
    wait_for_checkpoint(&job);
    job.pace_steps(2);
    volume.fill();
    let trouble = job.wait_for_trouble("No space left on device");
    assert!(trouble.starts_with(path.to_str().unwrap()), "{trouble}");
    let before = newest(&path).unwrap();
    job.wait_for_steps(10 * EVERY);
    assert_eq!(newest(&path), Some(before), "it is full");
    assert_eq!(
        job.status(0, 0).unwrap().progress.unwrap().checkpoint_step,
        Some(before)
    );
    volume.make_room();
    wait_until_saved_beyond(&job, before);
    leave_and_resume(job, &path, 2);
}

#[test]
fn leftovers_of_killed_workers_do_not_fill_a_volume() {
    let Some(volume) = Volume::of_memory(KIB) else {
        return;
    };
    let path = volume.path();
    train_and_kill(2, &path, 1);
    let before = newest(&path).unwrap();
    let left = format!(
        "checkpoints/gen-0000000001-step-{:012}.partial-1",
        before + 1
    );
    fill(&path.join(&left).join("shard-00000-of-00001.safetensors"));
    let job = start(&endless(), 2, &path, 2);
    job.pace_steps(2);
    wait_until_saved_beyond(&job, before);
    assert!(job.metric(0, "roundhouse_train_checkpoint_failures_total") >= 1.0);
    assert!(!path.join(left).exists());
    leave_and_resume(job, &path, 3);
}

#[test]
fn complete_training_waits_for_space_for_its_result() {
    let Some(volume) = Volume::of_memory(KIB) else {
        return;
    };
    volume.fill();
    let mut job = start(&training(), 2, &volume.path(), 1);
    job.wait_for("the last save", |status| status.phase == Phase::Saving);
    job.wait_for_trouble("No space left on device");
    volume.make_room();
    job.complete();
    let steps = training()["steps"].as_u64().unwrap();
    assert_eq!(newest(&volume.path()), Some(steps));
    assert_proven(&volume.path(), steps);
}

#[test]
fn read_only_volume_is_loaded_from_and_reported() {
    let Some(volume) = Volume::of_memory(KIB) else {
        return;
    };
    let path = volume.path();
    train_and_kill(2, &path, 1);
    let before = newest(&path).unwrap();
    volume.remount("ro");
    // Another job of the same name, which cannot write the start of its generations.
    let environment = CheckpointEnvironment {
        job_uid: Some("second".to_owned()),
        ..every(&path)
    };
    let mut job = Job::with_checkpoints(&endless(), 2, environment);
    job.issue_when_ready(1);
    job.pace_steps(2);
    let trouble = job.wait_for_trouble("Read-only file system");
    assert!(trouble.starts_with(path.to_str().unwrap()), "{trouble}");
    job.wait_for_steps(10 * EVERY);
    assert_eq!(newest(&path), Some(before));
    volume.remount("rw");
    wait_until_saved_beyond(&job, before);
    // A later process writes it for all of them.
    job.signal(1, "-KILL");
    job.wait_for_nodes(&[0], "its loss", |status| status.phase == Phase::Stranded);
    job.respawn(1);
    let saved = newest(&path).unwrap();
    job.issue(2);
    job.wait_for("generation 2", |status| status.step > saved);
    wait_until_saved_beyond(&job, saved);
    leave_and_resume(job, &path, 5_000_000);
}

#[test]
fn volume_that_turns_read_only_keeps_its_checkpoints() {
    let Some(volume) = Volume::of_disk() else {
        return;
    };
    let path = volume.path().join("job");
    let mut job = patient(&endless(), &path, 2, "");
    job.issue_when_ready(1);
    job.pace_steps(2);
    wait_for_checkpoint(&job);
    volume.fail();
    let trouble = job.wait_for_trouble("Read-only file system");
    assert!(trouble.starts_with(path.to_str().unwrap()), "{trouble}");
    let before = newest(&path);
    job.wait_for_steps(10 * EVERY);
    assert_eq!(newest(&path), before);
    for rank in 0..2 {
        job.signal(rank, "-TERM");
    }
    assert_eq!(job.exit_codes(), [Some(143), Some(143)], "{}", job.logs());
    volume.repair();
    resume(&path, 2);
}

#[test]
fn unusable_volume_is_reported_before_the_first_save() {
    let Some(volume) = Volume::of_disk() else {
        return;
    };
    let path = volume.path().join("job");
    std::fs::create_dir(&path).unwrap();
    Volume::only_appends_to(&path);
    let job = Job::with_checkpoints(&endless(), 2, every_steps(path.clone(), 1_000_000));
    job.issue_when_ready(1);
    let trouble = job.wait_for_trouble("does not rename a directory that holds files");
    assert!(
        trouble.starts_with(path.to_str().unwrap()) && trouble.contains("use NFS, CephFS"),
        "{trouble}"
    );
    job.wait_for_steps(EVERY);
}

#[test]
fn training_without_a_saved_result_does_not_succeed() {
    let directory = tempfile::tempdir().unwrap();
    let volume = directory.path().join("volume");
    std::fs::write(&volume, "a file in the place of the directory").unwrap();
    let config = training();
    let mut job = patient(&config, &volume, 2, "");
    job.issue_when_ready(1);
    assert_eq!(job.exit_codes(), [Some(74), Some(74)], "{}", job.logs());
    let failure = job.failure(0, 0);
    assert_eq!(
        (failure.reason, failure.step),
        (Reason::VolumeFailed, config["steps"].as_u64().unwrap())
    );
    let named = failure.message.contains(volume.to_str().unwrap());
    assert!(
        named && failure.message.contains("Not a directory"),
        "{}",
        failure.message
    );
    // The training itself was completed.
    assert_same(&job, &undisturbed(&config), "without a volume");
    let progress = job.progress();
    assert_eq!(progress.checkpoint_step, None);
    assert!(job.metric(0, "roundhouse_train_checkpoint_failures_total") >= 1.0);
    // The log reports it once at the start, not each time.
    let logs = job.logs();
    assert_eq!(logs.matches("error: checkpoint:").count(), 2, "{logs}");
}

#[test]
fn unkillable_writers_delay_no_step_and_no_report() {
    let Some(volume) = Volume::of_disk() else {
        return;
    };
    let path = volume.path().join("job");
    let mut config = training();
    config["steps"] = json!(2_000);
    let mut job = patient(&config, &path, 5, "");
    job.pace_steps(2);
    job.issue_when_ready(1);
    wait_for_checkpoint(&job);
    volume.freeze();
    job.wait_for_trouble("has accepted no byte");
    job.wait_for("the last save", |status| status.phase == Phase::Saving);
    job.wait_until("the termination message", || job.last_words(0).is_some());
    let failure = job.failure(0, 0);
    assert_eq!(
        (failure.reason, failure.step),
        (Reason::VolumeFailed, 2_000),
        "{}",
        failure.message
    );
    // The kernel ends the processes after the thaw.
    volume.thaw();
    assert_eq!(job.exit_codes(), [Some(74), Some(74)], "{}", job.logs());
    resume(&path, 2);
    let (code, text) = audit(&path);
    assert_eq!(code, Some(0), "{text}");
}
