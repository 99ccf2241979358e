//! If all workers are lost, training continues from the newest complete checkpoint, and the ledger
//! proves that no sample was used twice.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};

use roundhouse_contract::{Phase, Reason};
use serde_json::{Value, json};
use tch::Tensor;

use crate::g03_elastic::{assert_same, undisturbed};
use crate::g05_parity::difference;
use crate::harness::{Job, assert_proven, audit, config, every_steps, flip_last_bit, trainer};

const STEPS: u64 = 400;
pub(crate) const EVERY: u64 = 20;

pub(crate) fn training() -> Value {
    let mut config = config();
    config["steps"] = json!(STEPS);
    config
}

/// A training that takes longer than the test.
pub(crate) fn endless() -> Value {
    let mut config = config();
    config["steps"] = json!(10_000_000);
    config
}

pub(crate) fn start(config: &Value, world: u32, volume: &Path, generation: u64) -> Job {
    let job = Job::with_checkpoints(config, world, every_steps(volume.to_owned(), EVERY));
    job.issue_when_ready(generation);
    job
}

/// Trains until there is a checkpoint, and then kills all processes at once.
pub(crate) fn train_and_kill(world: u32, volume: &Path, generation: u64) {
    // The same training, but with an end that it does not reach.
    let mut job = start(&endless(), world, volume, generation);
    wait_for_checkpoint(&job);
    for rank in 0..world as usize {
        job.signal(rank, "-KILL");
    }
    assert_eq!(job.exit_codes(), vec![None; world as usize]);
}

pub(crate) fn wait_for_checkpoint(job: &Job) {
    job.wait_for_nodes(&[0], "a checkpoint", |status| {
        let progress = status.progress.as_ref();
        progress.is_some_and(|progress| progress.checkpoint_step.is_some())
    });
}

/// Exports a checkpoint. Returns the exit code, the output, and the tensors by name.
pub(crate) fn exported(
    volume: &Path,
    arguments: &[&str],
) -> (Option<i32>, String, Vec<(String, Tensor)>) {
    let out = tempfile::tempdir().unwrap();
    let file = out.path().join("model.safetensors");
    let mut command = trainer();
    let command = command.arg("export").arg(volume).arg(&file).args(arguments);
    let output = command.output().unwrap();
    let words = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    let mut tensors = Tensor::read_safetensors(&file).unwrap_or_default();
    tensors.sort_by(|left, right| left.0.cmp(&right.0));
    assert_eq!(tensors.is_empty(), !output.status.success(), "{words}");
    let left = std::fs::read_dir(out.path()).unwrap().count();
    assert_eq!(left, usize::from(output.status.success()), "{words}");
    (output.status.code(), words, tensors)
}

#[test]
fn export_equals_the_saved_state_and_refuses_damage() {
    let volume = tempfile::tempdir().unwrap();
    let mut config = config();
    config["steps"] = json!(2 * EVERY);
    let mut job = start(&config, 3, volume.path(), 1);
    job.complete();
    let (code, words, weights) = exported(volume.path(), &[]);
    assert_eq!(code, Some(0), "{words}");
    assert!(words.contains(&format!("step {}", 2 * EVERY)), "{words}");
    assert!(difference(&weights, &job.weights()) <= 0.0, "{words}");
    let (_, words, all) = exported(volume.path(), &["--all"]);
    assert_eq!(
        all.len(),
        2 * weights.len(),
        "weights and momentum: {words}"
    );

    let newest = checkpoints(volume.path()).pop().unwrap();
    let name = newest.file_name().unwrap().to_str().unwrap().to_owned();
    let (code, words, _) = exported(volume.path(), &["--checkpoint", "gen-1"]);
    assert_eq!(code, Some(64), "{words}");
    assert!(words.contains(&name), "{words}");
    let (code, words, _) = exported(volume.path(), &["--best"]);
    assert_eq!(code, Some(64), "{words}");
    assert!(words.contains("checkpoint.best"), "{words}");
    let (code, words, _) = exported(&volume.path().join("checkpoints"), &[]);
    assert_eq!(code, Some(64), "{words}");

    flip_last_bit(&newest.join("shard-00001-of-00003.safetensors"));
    let (code, words, _) = exported(volume.path(), &[]);
    assert_eq!(code, Some(65), "{words}");
    assert!(words.contains("checksum"), "{words}");
}

/// The complete checkpoints, the oldest first.
pub(crate) fn checkpoints(volume: &Path) -> Vec<PathBuf> {
    let mut paths = everything(volume);
    paths.retain(|path| path.extension().is_none());
    paths
}

pub(crate) fn everything(volume: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(volume.join("checkpoints")).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

pub(crate) fn step_of(checkpoint: &Path) -> u64 {
    let name = checkpoint.file_name().unwrap().to_str().unwrap();
    name.rsplit_once('-').unwrap().1.parse().unwrap()
}

/// The parts of a checkpoint with their SHA-256.
pub(crate) fn parts(checkpoint: &Path) -> Value {
    let text = std::fs::read_to_string(checkpoint.join("manifest.json")).unwrap();
    let manifest: Value = serde_json::from_str(&text).unwrap();
    manifest["shards"].clone()
}

/// The configuration of a training that continues for some steps after the newest checkpoint.
pub(crate) fn beyond(volume: &Path) -> Value {
    let newest = checkpoints(volume).iter().map(|path| step_of(path)).max();
    let mut config = config();
    config["steps"] = json!(newest.unwrap() + 200);
    config
}

#[test]
fn killed_job_resumes_with_any_number_of_workers() {
    for (before, after) in [(2, 2), (3, 2), (1, 3)] {
        let what = format!("{before} killed, {after} continue");
        let volume = tempfile::tempdir().unwrap();
        train_and_kill(before, volume.path(), 1);
        let config = beyond(volume.path());
        let mut job = start(&config, after, volume.path(), 2);
        job.complete();
        assert!(job.logs().contains("loaded checkpoint"), "{}", job.logs());
        assert_same(&job, &undisturbed(&config), &what);
        assert_proven(volume.path(), config["steps"].as_u64().unwrap());
    }
}

#[test]
pub(crate) fn job_that_all_ranks_leave_resumes_at_the_same_step() {
    for world in [2, 3] {
        let volume = tempfile::tempdir().unwrap();
        let config = endless();
        let mut job = start(&config, world, volume.path(), 1);
        job.wait_for("committed steps", |status| status.step > 50);
        for rank in 0..world as usize {
            job.signal(rank, "-TERM");
        }
        assert!(
            job.exit_codes().iter().all(|code| *code == Some(143)),
            "{}",
            job.logs()
        );
        // The signals are sent one after the other. If a rank leaves before another rank gets its
        // signal, the other rank commits further steps.
        let last = (0..world).min_by_key(|node| Reverse(job.failure(*node, 0).step));
        let last = last.unwrap();
        let failure = job.failure(last, 0);
        assert_eq!(failure.reason, Reason::Left);
        assert_eq!(
            checkpoints(volume.path()).last().map(|path| step_of(path)),
            Some(failure.step),
            "the last step was not saved"
        );
        let progress = job.status(last, 0).unwrap().progress.unwrap();
        assert_eq!(
            progress.checkpoint_step,
            Some(failure.step),
            "no rank reports the checkpoint"
        );
        let config = beyond(volume.path());
        let mut job = start(&config, world, volume.path(), 2);
        let resumed = job.complete();
        let mut straight = Job::train(&config, world, 1);
        assert!(resumed == straight.complete(), "some bits differ");
        assert_proven(volume.path(), failure.step + 200);
    }
}

#[test]
fn checkpoint_is_saved_after_the_configured_time() {
    let volume = tempfile::tempdir().unwrap();
    let mut checkpoint = every_steps(volume.path().to_owned(), EVERY);
    checkpoint.every_steps = None;
    checkpoint.every_seconds = Some(1);
    let job = Job::with_checkpoints(&endless(), 2, checkpoint);
    job.issue_when_ready(1);
    wait_for_checkpoint(&job);
}

/// The time between saves starts at the newest checkpoint, whichever process has saved it.
#[test]
fn restarted_job_saves_at_once_if_a_save_is_due() {
    let volume = tempfile::tempdir().unwrap();
    train_and_kill(1, volume.path(), 1);
    let newest = checkpoints(volume.path()).pop().unwrap();
    let file = newest.join("manifest.json");
    let mut manifest: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    for (generation, saved_at, is_old) in [
        (2, "2999-01-01T00:00:00Z", false),
        (3, "2026-01-01T00:00:00Z", true),
    ] {
        manifest["savedAt"] = json!(saved_at);
        std::fs::write(&file, manifest.to_string()).unwrap();
        let mut checkpoint = every_steps(volume.path().to_owned(), EVERY);
        checkpoint.every_steps = None;
        checkpoint.every_seconds = Some(86_400);
        let mut job = Job::with_checkpoints(&endless(), 1, checkpoint);
        job.issue_when_ready(generation);
        job.wait_for("steps", |status| status.step > step_of(&newest) + 50);
        if is_old {
            job.wait_until("a newer checkpoint", || {
                checkpoints(volume.path()).last() > Some(&newest)
            });
        }
        job.signal(0, "-KILL");
        assert_eq!(job.exit_code(0), None);
        let found = checkpoints(volume.path()).pop().unwrap();
        assert_eq!(found > newest, is_old, "{saved_at}");
    }
}

#[test]
fn recreated_job_does_not_overwrite_earlier_checkpoints() {
    let volume = tempfile::tempdir().unwrap();
    train_and_kill(1, volume.path(), 4);
    for generation in [1, 4] {
        let mut job = start(&endless(), 1, volume.path(), generation);
        assert_eq!(job.exit_code(0), Some(75), "{}", job.logs());
        // The next generation must have a greater number.
        assert_eq!(job.failure(0, 0).generation, 4);
    }
    let mut config = beyond(volume.path());
    let mut job = start(&config, 1, volume.path(), 5);
    job.complete();
    assert_proven(volume.path(), config["steps"].take().as_u64().unwrap());
}

#[test]
fn older_generation_is_fenced_off() {
    let volume = tempfile::tempdir().unwrap();
    let mut zombie = start(&endless(), 1, volume.path(), 1);
    wait_for_checkpoint(&zombie);
    let mut successor = start(&endless(), 1, volume.path(), 2);
    assert_eq!(zombie.exit_code(0), Some(75), "{}", zombie.logs());
    let failure = zombie.failure(0, 0);
    assert!(
        failure.message.contains("generation 2"),
        "{}",
        failure.message
    );
    successor.wait_for("its own steps", |status| {
        status.generation == 2 && status.phase == Phase::Training
    });
    successor.signal(0, "-TERM");
    assert_eq!(successor.exit_code(0), Some(143));
    let (code, text) = audit(volume.path());
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn kill_during_a_save_leaves_the_previous_checkpoint() {
    let mut config = training();
    config["steps"] = json!(60);
    let mut job = Job::with_kill(&config, 2, 0, "0:20:Complete");
    assert_eq!(job.exit_code(0), None, "{}", job.logs());
    job.issue_to(2, &[1]);
    assert_eq!(job.exit_code(1), Some(0), "{}", job.logs());
    assert_same(&job, &undisturbed(&config), "rank 0 at the name");
    assert_proven(job.volume(), 60);
    assert_eq!(
        everything(job.volume()),
        checkpoints(job.volume()),
        "the incomplete checkpoint still exists"
    );
}
