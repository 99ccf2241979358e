//! A spare holds second copies of the state of a worker of one pod. If the worker is lost with its
//! volume, the spare takes its place and continues from them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use roundhouse_contract::HeldCopy;
use roundhouse_elastic::CheckpointId;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::g05_parity::difference;
use crate::harness::{Job, assert_proven, config, flip_last_bit};
use crate::large_replicas::{sharded, undisturbed};

const STEPS: u64 = 200;
/// Number of steps between two copies.
const EVERY: u64 = 10;

/// Workers of one pod with `procs` processes: worker 0 trains, and the others are spares.
struct Workers {
    job: Job,
    config: Value,
    procs: u32,
    shared: TempDir,
    copies: TempDir,
    generation: u64,
}

impl Workers {
    fn start(nodes: u32, procs: u32) -> Self {
        Self::copying(nodes, procs, EVERY)
    }

    fn copying(nodes: u32, procs: u32, every: u64) -> Self {
        let mut config = if procs > 1 {
            sharded("Zero3")
        } else {
            config()
        };
        config["steps"] = json!(STEPS);
        let (shared, copies) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let volumes = (shared.path().to_owned(), copies.path().to_owned());
        let job = Job::with_holders(&config, nodes, procs, volumes, every);
        job.pace_steps(10);
        Self {
            job,
            config,
            procs,
            shared,
            copies,
            generation: 0,
        }
    }

    /// Lets one worker train. Returns its first step.
    fn train(&mut self, node: u32) -> u64 {
        self.generation += 1;
        let generation = self.generation;
        self.job.issue_to(generation, &[node]);
        self.job.wait_for_nodes(&[node], "a step", |status| {
            status.generation == generation && status.step > 0
        });
        self.job.first_step_of(generation)
    }

    /// Lets worker 0 train from the first step, with worker 1 as its holder, until it knows of a
    /// copy there after a step.
    fn train_with_holder(&mut self, after: u64) -> HeldCopy {
        self.job.pair("a", 0, 1);
        assert_eq!(self.train(0), 1);
        self.wait_for_held(0, after)
    }

    fn volume(&self, node: u32) -> PathBuf {
        self.copies.path().join(node.to_string())
    }

    /// The states of which a worker has all parts.
    fn whole(&self, node: u32) -> BTreeSet<CheckpointId> {
        let of = |shard| {
            let directory = self.volume(node).join(format!("shard-{shard}"));
            let entries = std::fs::read_dir(directory).into_iter().flatten();
            let names = entries.map(|entry| entry.unwrap().file_name());
            let ids = names.filter_map(|name| CheckpointId::parse(name.to_str().unwrap()));
            ids.collect::<BTreeSet<_>>()
        };
        let all = (0..self.procs).map(of);
        all.reduce(|left, right| &left & &right).unwrap_or_default()
    }

    fn newest(&self, node: u32) -> u64 {
        self.whole(node).last().map_or(0, |id| id.step)
    }

    fn held(&self, node: u32) -> Option<HeldCopy> {
        self.job.status(node, 0)?.progress?.held_copy
    }

    /// Waits until the worker knows of a newer copy in its holder.
    fn wait_for_held(&self, worker: u32, after: u64) -> HeldCopy {
        let newer = || self.held(worker).filter(|held| held.step > after);
        self.job
            .wait_until("a copy in the holder", || newer().is_some());
        newer().unwrap()
    }

    fn lose(&self, node: u32) {
        std::fs::remove_dir_all(self.volume(node)).unwrap();
    }

    /// Waits until the worker has completed the training.
    fn complete(&self, node: u32) {
        self.job.pace_steps(0);
        self.job.wait_for_nodes(&[node], "the end", |status| {
            status.phase == roundhouse_contract::Phase::Done
        });
        assert_proven(self.shared.path(), STEPS);
        let found = difference(&self.job.weights(), &undisturbed(self.config.clone()));
        assert!(found == 0.0, "{found:e}\n{}", self.job.logs());
    }
}

#[test]
fn spare_continues_from_the_copies_that_it_holds() {
    for procs in [1, 2] {
        let mut workers = Workers::start(2, procs);
        let held = workers.train_with_holder(EVERY);
        assert_eq!(held.pod, "worker-1");
        assert!(workers.newest(1) >= held.step, "{held:?}");
        workers.job.kill_worker(0);
        workers.lose(0);
        let newest = workers.newest(1);
        assert_eq!(workers.train(1), newest + 1, "{}", workers.job.logs());
        workers.complete(1);
    }
}

/// A process of the worker dies at each point of a copy, and the worker is lost. It returns as the
/// next holder. Returns the number of losses.
fn change_places(workers: &mut Workers) -> u64 {
    workers.job.pair("first", 0, 1);
    workers.train(0);
    let mut known = 0;
    let points = ["CopyBegun", "CopyWritten", "CopyComplete", "Backward"];
    for (round, point) in points.into_iter().enumerate() {
        let (worker, holder) = if round % 2 == 0 { (0, 1) } else { (1, 0) };
        known = workers.wait_for_held(worker, known).step;
        workers.job.dies_at(worker, point);
        workers.lose(worker);
        let newest = workers.newest(holder);
        assert!(newest >= known, "{point}: {newest} {known}");
        for node in [worker, holder] {
            assert!(workers.whole(node).len() <= 2, "{point}");
        }
        let first = workers.train(holder);
        assert_eq!(first, newest + 1, "{point}\n{}", workers.job.logs());
        workers.job.begin_pod(worker, point);
        workers.job.pair(point, holder, worker);
    }
    workers.complete(0);
    points.len() as u64
}

#[test]
fn worker_and_holder_change_places() {
    change_places(&mut Workers::start(2, 2));
}

#[test]
fn at_most_one_step_is_repeated_if_each_step_is_copied() {
    let mut workers = Workers::copying(2, 2, 1);
    // Several steps could be done meanwhile.
    workers.job.pace_copies(50);
    let losses = change_places(&mut workers);
    let repeated = workers.job.progress().repeated_steps;
    assert!(repeated <= losses, "{repeated}");
}

#[test]
fn worker_trains_on_if_its_holder_is_lost_and_gets_another_one() {
    let mut workers = Workers::start(3, 1);
    workers.train_with_holder(0);
    workers.job.kill_worker(1);
    let trouble = || {
        let progress = workers.job.status(0, 0)?.progress?;
        progress
            .local_error
            .filter(|_| progress.held_copy.is_none())
    };
    workers.job.wait_until("the loss", || trouble().is_some());
    let error = trouble().unwrap();
    assert!(error.contains("worker-1"), "{error}");
    let before = workers.newest(0);
    let has_more = || workers.newest(0) > before + EVERY;
    workers.job.wait_until("copies of its own", has_more);
    workers.job.pair("b", 0, 2);
    let held = workers.wait_for_held(0, before);
    assert_eq!(held.pod, "worker-2");
    assert_eq!(trouble(), None);
    workers.job.kill_worker(0);
    workers.lose(0);
    let newest = workers.newest(2);
    assert_eq!(workers.train(2), newest + 1, "{}", workers.job.logs());
    workers.complete(2);
}

/// A worker that the operator cannot reach still trains. Its former holder refuses its copies, or
/// it ends because it finds another process group on the volume.
#[test]
fn worker_that_was_replaced_changes_nothing_in_its_holder() {
    let mut workers = Workers::copying(2, 1, 1);
    // It must not complete the training.
    workers.job.pace_steps(50);
    workers.train_with_holder(0);
    let newest = workers.newest(1);
    let first = workers.train(1);
    assert!(first > newest, "{first} {newest}");
    workers.job.wait_until("its refusal or its end", || {
        let progress = workers.job.status(0, 0).and_then(|it| it.progress);
        let is_refused = progress.is_some_and(|progress| progress.local_error.is_some());
        is_refused || workers.job.last_words(0).is_some()
    });
    let generation = workers.generation;
    workers.job.wait_until("copies of the new worker", || {
        let whole = workers.whole(1);
        whole.len() == 2 && whole.iter().all(|id| id.generation == generation)
    });
}

#[test]
fn damaged_copy_in_the_holder_is_not_used() {
    let mut workers = Workers::start(2, 1);
    workers.job.pair("a", 0, 1);
    workers.train(0);
    workers
        .job
        .wait_until("two copies in the holder", || workers.whole(1).len() > 1);
    workers.job.signal(0, "-STOP");
    workers.job.kill_worker(0);
    workers.lose(0);
    let whole = workers.whole(1);
    let (newest, older) = (whole.last().unwrap(), whole.first().unwrap());
    flip_last_bit(&workers.volume(1).join("shard-0").join(newest.name()));
    let expected = if whole.len() > 1 { older.step + 1 } else { 1 };
    assert_eq!(workers.train(1), expected, "{}", workers.job.logs());
    workers.complete(1);
}

/// A generation with the spare breaks after it has read its copy. The worker trains on and sends
/// newer ones.
#[test]
fn spare_continues_from_copies_that_are_newer_than_its_memory() {
    let mut workers = Workers::start(2, 1);
    workers.job.pace_steps(30);
    workers.job.fail_to_form(1, 2);
    workers.job.begin_pod(1, "failing");
    workers.train_with_holder(0);
    workers.generation += 1;
    workers.job.issue_to(workers.generation, &[1]);
    workers.job.wait_for_nodes(&[1], "the loss", |status| {
        status.phase == roundhouse_contract::Phase::Stranded
    });
    workers.wait_for_held(0, workers.newest(1) + 2 * EVERY);
    workers.job.kill_worker(0);
    workers.lose(0);
    let newest = workers.newest(1);
    assert_eq!(workers.train(1), newest + 1, "{}", workers.job.logs());
    workers.complete(1);
}

/// Its kernel still takes connections.
#[test]
fn frozen_holder_does_not_stop_training() {
    let mut workers = Workers::copying(2, 1, 1);
    workers.train_with_holder(2);
    workers.job.signal(1, "-STOP");
    let step = || workers.job.status(0, 0).map_or(0, |status| status.step);
    let (at, begun) = (step(), Instant::now());
    workers.job.wait_until("fifty steps", || step() > at + 50);
    let elapsed = begun.elapsed();
    assert!(elapsed < Duration::from_mins(1), "{elapsed:?}");
    workers.job.signal(1, "-CONT");
}

/// The worker has the newer state, and trains.
#[test]
fn holder_that_is_asked_to_leave_saves_no_checkpoint() {
    let mut workers = Workers::start(2, 1);
    workers.train_with_holder(0);
    workers.job.begin_container(1);
    workers.job.signal(1, "-TERM");
    assert_eq!(
        workers.job.exit_code(1),
        Some(143),
        "{}",
        workers.job.logs()
    );
    assert!(!workers.shared.path().join("checkpoints").exists());
}
