//! Copies of the state in a directory of each worker: if all processes die, training continues from
//! them, unless the volume has a newer checkpoint.

use std::path::{Path, PathBuf};

use roundhouse_contract::Phase;
use roundhouse_contract::environment::{CheckpointEnvironment, LocalCopiesEnvironment};
use roundhouse_elastic::CheckpointId;
use tempfile::TempDir;

use crate::g03_elastic::{assert_same, undisturbed};
use crate::g07_checkpoints::{checkpoints, endless, step_of, training};
use crate::harness::{
    Job, assert_proven, audit, every_steps, flip_last_bit, on_device, without_evaluations,
};

/// Number of steps between two copies.
const EVERY: u64 = 7;
/// More than the tests train: the volume then has no checkpoint before the end.
const NEVER: u64 = 1_000_000;

/// The checkpoint volume of a job and the local copies of its workers.
struct Volumes {
    shared: TempDir,
    copies: TempDir,
}

impl Volumes {
    fn new() -> Self {
        Self {
            shared: tempfile::tempdir().unwrap(),
            copies: tempfile::tempdir().unwrap(),
        }
    }

    fn shared(&self) -> &Path {
        self.shared.path()
    }

    fn settings(&self, checkpoint_every: u64, max_bytes: Option<u64>) -> CheckpointEnvironment {
        CheckpointEnvironment {
            local: Some(LocalCopiesEnvironment {
                dir: self.copies.path().to_owned(),
                every_steps: EVERY,
                max_bytes,
                pair_file: None,
            }),
            ..every_steps(self.shared().to_owned(), checkpoint_every)
        }
    }

    /// Trains with two workers until each has a copy after `least` steps, and kills both.
    fn train_and_kill(&self, generation: u64, least: u64) {
        train_and_kill_with(self.settings(NEVER, None), generation, |job| {
            job.wait_for("copies of both", |_| {
                (0..2).all(|node| self.newest(node) > least)
            });
        });
    }

    /// The copies of a worker, the oldest first.
    fn of_worker(&self, node: u32) -> Vec<PathBuf> {
        let directory = self.copies.path().join(format!("{node}/shard-0"));
        let entries = std::fs::read_dir(directory).into_iter().flatten();
        let mut all: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        all.retain(|path| CheckpointId::parse(name(path)).is_some());
        all.sort();
        all
    }

    /// Step of a worker's newest copy; 0 if it has none.
    fn newest(&self, node: u32) -> u64 {
        self.of_worker(node).last().map_or(0, |path| step_of(path))
    }

    /// Continues to the end of the training. Returns its first step.
    fn complete(&self, generation: u64) -> u64 {
        let config = training();
        let mut job = Job::with_checkpoints(&config, 2, self.settings(NEVER, None));
        job.issue_when_ready(generation);
        job.complete();
        assert_proven(self.shared(), config["steps"].as_u64().unwrap());
        assert_same(&job, &undisturbed(&config), "from local copies");
        job.first_step_of(generation)
    }
}

fn train_and_kill_with(settings: CheckpointEnvironment, generation: u64, wait: impl FnOnce(&Job)) {
    // An evaluation would let the host wait for the device.
    let config = without_evaluations(endless());
    let mut job = Job::with_checkpoints(&config, 2, settings);
    job.issue_when_ready(generation);
    wait(&job);
    for rank in 0..2 {
        job.signal(rank, "-KILL");
    }
    assert_eq!(job.exit_codes(), [None; 2]);
}

fn name(path: &Path) -> &str {
    path.file_name().unwrap().to_str().unwrap()
}

#[test]
fn killed_workers_continue_from_their_copies() {
    dies_twice_and_completes();
}

/// The host launches the next step before it reads the result of a step.
#[test]
fn copy_on_a_device_has_the_state_of_its_step() {
    on_device(dies_twice_and_completes);
}

fn dies_twice_and_completes() {
    let volumes = Volumes::new();
    volumes.train_and_kill(1, 0);
    volumes.train_and_kill(2, volumes.newest(0) + EVERY);
    for node in 0..2 {
        assert!(volumes.of_worker(node).len() <= 2);
    }
    let newest = volumes.newest(0).max(volumes.newest(1));
    assert!(!volumes.shared().join("checkpoints").exists());
    assert_eq!(volumes.complete(3), newest + 1);
}

#[test]
fn worker_without_a_copy_gets_the_state_of_the_other() {
    let volumes = Volumes::new();
    volumes.train_and_kill(1, EVERY);
    std::fs::remove_dir_all(volumes.copies.path().join("0")).unwrap();
    let newest = volumes.newest(1);
    assert_eq!(volumes.complete(2), newest + 1);
}

#[test]
fn damaged_copy_is_not_used() {
    let volumes = Volumes::new();
    volumes.train_and_kill(1, 3 * EVERY);
    for node in 0..2 {
        flip_last_bit(&volumes.of_worker(node).pop().unwrap());
    }
    let left = (0..2).filter_map(|node| volumes.of_worker(node).into_iter().rev().nth(1));
    let newest = left.map(|path| step_of(&path)).max().unwrap_or_default();
    assert_eq!(volumes.complete(2), newest + 1);
}

#[test]
fn copy_is_used_if_the_newer_checkpoint_is_damaged() {
    let volumes = Volumes::new();
    let mut job = Job::with_checkpoints(&endless(), 2, volumes.settings(NEVER, None));
    job.issue_when_ready(1);
    job.wait_for("copies of both", |_| {
        (0..2).all(|node| volumes.newest(node) > EVERY)
    });
    for rank in 0..2 {
        job.signal(rank, "-TERM");
    }
    assert_eq!(job.exit_codes(), [Some(143); 2], "{}", job.logs());
    let saved = checkpoints(volumes.shared()).pop().expect("a checkpoint");
    flip_last_bit(&saved.join("shard-00000-of-00002.safetensors"));
    let newest = volumes.newest(0).max(volumes.newest(1));
    assert_eq!(volumes.complete(2), newest + 1);
}

/// A worker that receives a newer state loses the sender, and still has its own copy.
#[test]
fn worker_with_a_torn_state_continues_from_its_copy() {
    let volumes = Volumes::new();
    train_and_kill_with(volumes.settings(NEVER, None), 1, |job| {
        job.wait_for("two copies of the second worker", |_| {
            if (0..2).any(|node| volumes.newest(node) <= 3 * EVERY) {
                return false;
            }
            // While a copy is written, there is only one.
            job.signal(1, "-STOP");
            job.wait_until_stopped(1);
            let has_both = volumes.of_worker(1).len() > 1;
            if !has_both {
                job.signal(1, "-CONT");
            }
            has_both
        });
    });
    for path in volumes.of_worker(1).into_iter().skip(1) {
        std::fs::remove_file(path).unwrap();
    }
    let left = volumes.newest(1);
    assert!(left < volumes.newest(0));
    let settings = Some(volumes.settings(NEVER, None));
    let kill = format!("0:{}:State", volumes.newest(0));
    let mut job = Job::sharing(&endless(), 2, &[(0, &kill)], settings);
    job.issue(2);
    assert_eq!(job.exit_code(0), None, "{}", job.logs());
    job.wait_for_nodes(&[1], "the loss", |status| status.phase == Phase::Stranded);
    job.issue_to(3, &[1]);
    job.wait_for_nodes(&[1], "training", |status| status.phase == Phase::Training);
    assert_eq!(job.first_step_of(3), left + 1, "{}", job.logs());
}

#[test]
fn newer_checkpoint_comes_before_a_copy() {
    let volumes = Volumes::new();
    volumes.train_and_kill(1, EVERY);
    let copied = volumes.newest(0).max(volumes.newest(1));
    // Without new copies.
    let settings = every_steps(volumes.shared().to_owned(), 2 * EVERY);
    train_and_kill_with(settings, 2, |job| {
        job.wait_for_nodes(&[0], "a newer checkpoint", |status| {
            let progress = status.progress.as_ref();
            progress.is_some_and(|progress| progress.checkpoint_step > Some(copied))
        });
        assert_eq!(job.first_step_of(2), 1, "it knows of no copy");
    });
    let saved = checkpoints(volumes.shared()).pop().unwrap();
    assert!(step_of(&saved) > copied, "{saved:?} {copied}");
    assert_eq!(volumes.complete(3), step_of(&saved) + 1);
}

#[test]
fn worker_that_leaves_before_it_trains_saves_its_copy() {
    let volumes = Volumes::new();
    volumes.train_and_kill(1, EVERY);
    let newest = volumes.newest(0);
    let mut job = Job::with_checkpoints(&endless(), 2, volumes.settings(NEVER, None));
    job.wait_for("the lobby", |status| status.phase.is_ready());
    job.signal(0, "-TERM");
    assert_eq!(job.exit_code(0), Some(143), "{}", job.logs());
    let saved = checkpoints(volumes.shared()).pop().expect("a checkpoint");
    assert_eq!(step_of(&saved), newest, "{}", job.logs());
}

#[test]
fn copies_that_do_not_fit_are_reported_and_not_written() {
    let volumes = Volumes::new();
    let settings = volumes.settings(NEVER, Some(1_000));
    let job = Job::with_checkpoints(&endless(), 2, settings);
    job.issue_when_ready(1);
    job.wait_for_nodes(&[0], "the reason", |status| {
        let progress = status.progress.as_ref();
        let error = progress.and_then(|progress| progress.local_error.as_ref());
        error.is_some_and(|error| error.contains("checkpoint.local.sizeLimit"))
    });
    job.wait_for_steps(3 * EVERY);
    assert_eq!(volumes.of_worker(0), Vec::<PathBuf>::new());
    let copies = job.metric(0, "roundhouse_train_local_copy_failures_total");
    assert!(copies >= 1.0, "{copies}");
}

#[test]
fn copies_of_a_suspect_state_are_deleted() {
    let volumes = Volumes::new();
    let at = 2 * EVERY;
    let mut job = Job::with_flipped_bit(&endless(), 2, volumes.settings(3 * at, None), 1, at);
    job.issue_when_ready(1);
    job.wait_for("copies", |_| !volumes.of_worker(0).is_empty());
    let codes = job.exit_codes();
    assert!(
        codes.iter().all(|code| *code != Some(0)),
        "{codes:?}\n{}",
        job.logs()
    );
    for node in 0..2 {
        assert_eq!(
            volumes.of_worker(node),
            Vec::<PathBuf>::new(),
            "{}",
            job.logs()
        );
    }
}

#[test]
fn copies_survive_kills_at_any_time() {
    let volumes = Volumes::new();
    let mut known = 0;
    for generation in 1..=6_u64 {
        let mut job = Job::with_checkpoints(&endless(), 2, volumes.settings(NEVER, None));
        job.issue_when_ready(generation);
        job.wait_for_nodes(&[0], "training", |status| {
            // The processes are in another part of a step or of a copy each time.
            status.phase == Phase::Training && status.step > known + 2 * generation
        });
        if generation > 1 {
            let first = job.first_step_of(generation);
            assert!(
                first > known,
                "step {first} after a copy of {known}\n{}",
                job.logs()
            );
        }
        for rank in 0..2 {
            job.signal(rank, "-KILL");
        }
        assert_eq!(job.exit_codes(), [None; 2]);
        let all = (0..2).flat_map(|node| volumes.of_worker(node));
        known = all.map(|path| step_of(&path)).max().unwrap_or(known);
    }
    let (code, text) = audit(volumes.shared());
    assert_eq!(code, Some(0), "{text}");
}
