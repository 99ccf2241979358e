//! Copies of the state in the pods of a replica: it survives the death of all its processes, and,
//! with second copies in other pods, the loss of any pod.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use roundhouse_contract::environment::{CheckpointEnvironment, LocalCopiesEnvironment};
use roundhouse_elastic::CheckpointId;
use roundhouse_member::faults::Cut;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::g05_parity::difference;
use crate::harness::{Job, assert_proven, every_steps, flip_last_bit};
use crate::large_replicas::{sharded, undisturbed};

const STEPS: u64 = 200;
/// Number of steps between two copies.
const EVERY: u64 = 10;
/// More than the tests train.
const NEVER: u64 = 1_000_000;
const PODS: u32 = 3;
/// Time in which the other processes end once one is lost. Collectives time out after a minute.
const TIME_TO_END: Duration = Duration::from_secs(40);

fn training() -> Value {
    let mut config = sharded("Zero3");
    config["steps"] = json!(STEPS);
    config
}

/// A job of one replica whose pods keep copies.
struct Replica {
    job: Job,
    shared: TempDir,
    copies: TempDir,
    generation: u64,
}

impl Replica {
    fn start(has_peer_copies: bool) -> Self {
        Self::with_volumes(tempfile::tempdir().unwrap(), has_peer_copies)
    }

    fn with_volumes(copies: TempDir, has_peer_copies: bool) -> Self {
        Self::of((1, PODS), copies, has_peer_copies)
    }

    fn of(size: (u32, u32), copies: TempDir, has_peer_copies: bool) -> Self {
        Self::training(&training(), size, copies, has_peer_copies)
    }

    fn training(config: &Value, size: (u32, u32), copies: TempDir, has_peer_copies: bool) -> Self {
        let shared = tempfile::tempdir().unwrap();
        let settings = CheckpointEnvironment {
            local: Some(LocalCopiesEnvironment {
                dir: copies.path().to_owned(),
                every_steps: EVERY,
                max_bytes: None,
                pair_file: None,
            }),
            ..every_steps(shared.path().to_owned(), NEVER)
        };
        let job = Job::replicas_with_copies(config, size, settings, has_peer_copies);
        job.pace_steps(10);
        let generation = 1;
        Self {
            job,
            shared,
            copies,
            generation,
        }
    }

    fn volume(&self, pod: u32) -> PathBuf {
        self.copies.path().join(pod.to_string())
    }

    /// The steps of which a pod has a copy of this part.
    fn copies(&self, pod: u32, shard: u32) -> BTreeSet<u64> {
        let directory = self.volume(pod).join(format!("shard-{shard}"));
        let entries = std::fs::read_dir(directory).into_iter().flatten();
        let names = entries.map(|entry| entry.unwrap().file_name());
        let ids = names.filter_map(|name| CheckpointId::parse(name.to_str().unwrap()));
        ids.map(|id| id.step).collect()
    }

    /// The newest step of which each part is in both of its pods.
    fn safe(&self) -> u64 {
        let of = |pod| {
            let holder = self.copies((pod + 1) % PODS, pod);
            &self.copies(pod, pod) & &holder
        };
        let common = (0..PODS).map(of).reduce(|left, right| &left & &right);
        common.unwrap_or_default().pop_last().unwrap_or(0)
    }

    /// Waits for a step of which each part is in both of its pods.
    fn wait_for_copies(&self, after: u64) {
        self.job.wait_for("safe copies", |_| self.safe() > after);
    }

    /// Starts the processes again. Returns the first step that they train.
    fn restart(&mut self) -> u64 {
        self.job.begin_life(0, self.generation);
        self.generation += 1;
        self.job.issue_when_ready(self.generation);
        let generation = self.generation;
        self.job.wait_for("a step", |status| {
            status.generation == generation && status.step > 0
        });
        self.job.first_step_of(generation)
    }

    fn complete(mut self) {
        self.job.pace_steps(0);
        self.job.complete();
        assert_proven(self.shared.path(), STEPS);
        let found = difference(&self.job.weights(), &undisturbed(training()));
        assert!(found == 0.0, "{found:e}\n{}", self.job.logs());
    }
}

fn lose(volume: &Path) {
    std::fs::remove_dir_all(volume).unwrap();
}

#[test]
fn replica_whose_processes_die_continues_from_its_copies() {
    let mut replica = Replica::start(false);
    let has_copies = |replica: &Replica| (0..PODS).all(|pod| replica.copies(pod, pod).len() > 1);
    replica.job.wait_for("copies", |_| has_copies(&replica));
    replica.job.signal(1, "-KILL");
    let codes = replica.job.exit_codes();
    assert_eq!(codes, [Some(75), None, Some(75)], "{}", replica.job.logs());
    let own = |pod| replica.copies(pod, pod);
    let common = (0..PODS).map(own).reduce(|left, right| &left & &right);
    let newest = common.unwrap().pop_last().unwrap();
    assert_eq!(replica.copies(1, 0), BTreeSet::new(), "no second copies");
    assert_eq!(replica.restart(), newest + 1, "{}", replica.job.logs());
    replica.complete();
}

/// A process dies at each point of a copy, and its pod or another one is lost with its volume.
#[test]
fn replica_that_loses_a_pod_continues_from_other_copies() {
    let mut replica = Replica::start(true);
    for (rank, point, lost) in [
        (0, "Backward", 0),
        (1, "CopyBegun", 1),
        (2, "CopyWritten", 0),
        (1, "CopyComplete", 1),
        (0, "CopyComplete", 2),
    ] {
        let what = format!("rank {rank} at {point}, pod {lost} is lost");
        // After a restart the copy that was read is soon in two pods again.
        replica.wait_for_copies(0);
        replica.wait_for_copies(replica.safe());
        let known = replica.safe();
        replica.job.kill_at(rank, point);
        let killed = Instant::now();
        replica.job.exit_codes();
        let elapsed = killed.elapsed();
        assert!(
            elapsed < TIME_TO_END,
            "{what}: the others ended after {elapsed:?}"
        );
        let safe = replica.safe();
        assert!(safe >= known && safe > 0, "{what}: {safe} {known}");
        lose(&replica.volume(lost));
        let first = replica.restart();
        assert!(
            first > safe,
            "{what}: {first} {safe}\n{}",
            replica.job.logs()
        );
    }
    replica.complete();
}

/// A failing network ends all processes of a replica in the vote on a step. No vote arrives, or
/// that of one process, so that only the others commit the step. Each process saves its parts, in
/// the middle of a copy, too, and the step counts.
#[test]
fn replica_that_loses_a_connection_repeats_no_step() {
    // With `Zero1` each process has all weights, and updates a part of them.
    for (shard, has_peer_copies) in [("Zero3", false), ("Zero1", true)] {
        let mut config = training();
        config["parallel"]["shard"] = json!(shard);
        let copies = tempfile::tempdir().unwrap();
        let mut replica = Replica::training(&config, (1, PODS), copies, has_peer_copies);
        replica.job.wait_for("a step", |status| status.step > 5);
        for (rank, cut, copies_are_slow) in [
            (1, Cut::BeforeVote, false),
            (0, Cut::AfterVote, true),
            (2, Cut::BeforeVote, true),
            (1, Cut::AfterVote, false),
        ] {
            replica
                .job
                .pace_copies(if copies_are_slow { 5_000 } else { 0 });
            if copies_are_slow {
                // All ranks write the copy of a step, and train on.
                let step = replica.job.step();
                let is_later = |reached: u64| reached > step + 2 * EVERY;
                let job = &replica.job;
                job.wait_for("steps beside a copy", |status| is_later(status.step));
            }
            replica.job.cut_links(rank, cut);
            let codes = replica.job.exit_codes();
            assert_eq!(codes, [Some(75); 3], "{}", replica.job.logs());
            // The process without the votes has not committed the step.
            let committed = replica.job.status(rank, 0).unwrap().step;
            let of_others = (0..PODS).filter(|other| *other != rank);
            let of_others = of_others.map(|other| replica.job.status(other, 0).unwrap().step);
            let most = committed + u64::from(cut == Cut::AfterVote);
            // With `Zero1` they do not report it, because they lack the weights of this process.
            let least = if shard == "Zero1" { committed } else { most };
            assert!(
                of_others
                    .into_iter()
                    .all(|step| (least..=most).contains(&step)),
                "{}",
                replica.job.logs()
            );
            let first = replica.restart();
            assert_eq!(
                first,
                committed + 2,
                "{rank} {cut:?}\n{}",
                replica.job.logs()
            );
        }
        replica.complete();
    }
}

/// A process dies when all have decided to commit a step. The others have updated their parts, and
/// do not get the weights of that process.
#[test]
fn part_of_a_step_is_saved_without_the_weights_of_others() {
    let mut config = training();
    config["parallel"]["shard"] = json!("Zero1");
    let copies = tempfile::tempdir().unwrap();
    let mut replica = Replica::training(&config, (1, PODS), copies, false);
    replica.job.wait_for("a step", |status| status.step > 5);
    replica.job.kill_at(1, "Update");
    let codes = replica.job.exit_codes();
    assert_eq!(codes, [Some(75), None, Some(75)], "{}", replica.job.logs());
    let step = replica.job.status(0, 0).unwrap().step;
    for pod in [0, 2] {
        let newest = replica.copies(pod, pod).pop_last();
        assert_eq!(newest, Some(step + 1), "{}", replica.job.logs());
    }
}

/// Each replica loses another part. One replica continues with the parts that are left.
#[test]
fn pods_of_two_torn_replicas_repeat_no_step() {
    pods_of_torn_replicas_repeat_no_step(|job| {
        job.signal(0, "-KILL");
        job.signal(3, "-KILL");
    });
}

/// The hosts of two processes do not answer, and spares take their places before the collectives
/// of the others time out.
#[test]
fn processes_that_wait_for_silent_ones_save_their_parts() {
    pods_of_torn_replicas_repeat_no_step(|job| {
        job.signal(0, "-STOP");
        job.signal(3, "-STOP");
        let began = Instant::now();
        for rank in [1, 2] {
            job.report_end_of_life(rank);
        }
        for rank in [1, 2] {
            assert_eq!(job.exit_code(rank), Some(75), "{}", job.logs());
        }
        let elapsed = began.elapsed();
        assert!(elapsed < TIME_TO_END, "{elapsed:?}\n{}", job.logs());
        job.signal(0, "-KILL");
        job.signal(3, "-KILL");
    });
}

/// `lose_two` ends the processes with ranks 0 and 3, at the beginning of a step.
fn pods_of_torn_replicas_repeat_no_step(lose_two: impl FnOnce(&mut Job)) {
    let mut replicas = Replica::of((2, 2), tempfile::tempdir().unwrap(), false);
    let job = &mut replicas.job;
    job.pace_steps(300);
    job.wait_for("some steps", |status| status.step > 15);
    let before = job.step();
    job.wait_for("the next step", |status| status.step > before);
    // All ranks are at the beginning of a step.
    lose_two(job);
    let codes = job.exit_codes();
    assert_eq!(codes, [None, Some(75), Some(75), None], "{}", job.logs());
    let step = job.status(1, 0).unwrap().step;
    assert_eq!(job.status(2, 0).unwrap().step, step);
    // Pod 2 takes the place of pod 0.
    lose(&replicas.volume(0));
    std::fs::rename(replicas.volume(2), replicas.volume(0)).unwrap();
    lose(&replicas.volume(3));
    replicas.job.begin_life(0, 1);
    replicas.job.passes(2, &[0, 1], 3);
    let first = replicas.job.first_step_of(2);
    assert_eq!(first, step + 1, "{}", replicas.job.logs());
}

#[test]
fn damaged_copy_is_not_used_from_another_pod_either() {
    let mut replica = Replica::start(true);
    replica.wait_for_copies(0);
    replica.wait_for_copies(replica.safe());
    for rank in 0..PODS {
        replica.job.signal(rank as usize, "-STOP");
    }
    for rank in 0..PODS {
        replica.job.signal(rank as usize, "-KILL");
    }
    replica.job.exit_codes();
    let (safe, older) = (replica.safe(), replica.copies(1, 0));
    let newest = *older.last().unwrap();
    lose(&replica.volume(0));
    for step in older.iter().filter(|step| **step >= safe) {
        let id = CheckpointId {
            generation: 1,
            step: *step,
        };
        flip_last_bit(&replica.volume(1).join("shard-0").join(id.name()));
    }
    let first = replica.restart();
    assert!(first <= safe, "{first} {newest}\n{}", replica.job.logs());
    replica.complete();
}

/// Each pod keeps at most two copies of its own part and two of that which it holds for another.
#[test]
fn pod_keeps_no_more_copies_than_its_volume_must_hold() {
    let replica = Replica::start(true);
    for _ in 0..4 {
        replica.wait_for_copies(replica.safe());
        for pod in 0..PODS {
            let of = |shard| replica.copies(pod, shard).len();
            let (own, held) = (of(pod), of((pod + PODS - 1) % PODS));
            assert!(own <= 2 && held <= 2, "{own} {held}");
            assert_eq!(of((pod + 1) % PODS), 0);
        }
    }
}

/// Without the part of one process, the parts of the others are of no use.
#[test]
fn copy_that_one_process_cannot_write_is_reported_by_all() {
    // The own volume of the last process, and that of the holder of the first one.
    for (pod, shard) in [(2, 2), (1, 0)] {
        let copies = tempfile::tempdir().unwrap();
        let blocked = copies.path().join(format!("{pod}/shard-{shard}"));
        std::fs::create_dir_all(blocked.parent().unwrap()).unwrap();
        std::fs::write(&blocked, "no directory").unwrap();
        let replica = Replica::with_volumes(copies, true);
        let job = &replica.job;
        job.wait_for_nodes(&[0], "the reason", |status| {
            let progress = status.progress.as_ref();
            progress.is_some_and(|progress| progress.local_error.is_some())
        });
        let progress = job.status(0, 0).unwrap().progress.unwrap();
        assert_eq!(progress.local_step, None);
        std::fs::remove_file(&blocked).unwrap();
        job.wait_for_nodes(&[0], "a copy", |status| {
            let progress = status.progress.as_ref();
            progress.is_some_and(|it| it.local_error.is_none() && it.local_step.is_some())
        });
        assert!(replica.safe() > 0, "{}", job.logs());
    }
}
