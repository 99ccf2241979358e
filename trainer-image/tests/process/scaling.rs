//! `onScale: ScaleBatch`: the batch size follows the number of workers, the learning rate follows
//! the batch size, and no sample is used twice or left out.

use std::collections::BTreeMap;
use std::path::Path;

use roundhouse_elastic::Line;
use serde_json::{Value, json};

use crate::harness::{Job, assert_proven, config, every_steps};

const NUM_SAMPLES: u64 = 1_500;
const BATCH: u64 = 32;

/// A training with a batch of 32 for each worker.
fn scaled() -> Value {
    let mut config = config();
    config["globalBatchSize"] = json!(BATCH);
    config["scaleBatch"] = json!({"referenceReplicas": 1, "warmupSteps": 30});
    config
}

/// The lines of a ledger by step.
fn lines(volume: &Path) -> BTreeMap<u64, Line> {
    let entries = std::fs::read_dir(volume.join("ledger")).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let mut all = BTreeMap::new();
    for path in paths {
        let text = std::fs::read_to_string(path).unwrap();
        let lines = text.lines().skip(1);
        let lines = lines.map(|line| serde_json::from_str::<Line>(line).unwrap());
        all.extend(lines.map(|line| (line.step, line)));
    }
    all
}

#[test]
fn batch_follows_workers_and_uses_each_sample_once() {
    const EPOCHS: u64 = 60;
    let mut config = scaled();
    config.as_object_mut().unwrap().remove("steps");
    config["epochs"] = json!(EPOCHS);
    let volume = tempfile::tempdir().unwrap();
    let mut job = Job::with_checkpoints(&config, 3, every_steps(volume.path().to_owned(), 200));
    job.wait_for("the lobby", |status| status.phase.is_ready());
    job.passes(1, &[0], 40);
    job.passes(2, &[0, 1, 2], 40);
    job.dismiss(3, 1);
    job.passes(3, &[0, 2], 40);
    for (node, code) in [(0, 0), (1, 143), (2, 0)] {
        assert_eq!(job.exit_code(node), Some(code), "{}", job.logs());
    }
    let lines = lines(volume.path());
    assert_proven(volume.path(), lines.len() as u64);
    let num_samples: u64 = lines.values().map(|line| line.end - line.start).sum();
    assert_eq!(num_samples, EPOCHS * NUM_SAMPLES);
    for line in lines.values() {
        let whole = BATCH * [0, 1, 3, 2][usize::try_from(line.generation).unwrap()];
        let end = NUM_SAMPLES.min(line.start + whole);
        assert_eq!(line.end, end, "{line:?}");
    }
    let progress = job.progress();
    assert_eq!(progress.step, lines.len() as u64);
    assert_eq!(
        (progress.total_steps, progress.epoch),
        (progress.step, EPOCHS)
    );
    // The learning rate has reached the value for two workers.
    let rate = "roundhouse_train_learning_rate 0.1";
    let metrics = job.metrics(0, 0);
    assert!(metrics.lines().any(|line| line == rate), "{metrics}");
}

/// The batch pace in a checkpoint.
fn pace(volume: &Path, generation: u64, step: u64) -> Value {
    let name = format!("checkpoints/gen-{generation:010}-step-{step:012}/manifest.json");
    let text = std::fs::read_to_string(volume.join(name)).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()["pace"].clone()
}

/// Trains with one worker, three and two, each from the previous checkpoint. Returns the final
/// weights.
fn train_in_three_parts() -> Vec<u8> {
    let volume = tempfile::tempdir().unwrap();
    let mut weights = Vec::new();
    // In steps of one worker. The three workers end before the warm-up is complete.
    for (generation, workers, until) in [(1, 1, 20), (2, 3, 80), (3, 2, 240)] {
        let mut config = scaled();
        config["steps"] = json!(until);
        let checkpoint = every_steps(volume.path().to_owned(), 1_000);
        let mut job = Job::with_checkpoints(&config, workers, checkpoint);
        job.issue_when_ready(generation);
        weights = job.complete();
    }
    assert_proven(volume.path(), 20 + 20 + 82);
    // Two thirds of the way from one worker to three, and later.
    let pace = pace(volume.path(), 3, 122);
    assert_eq!(
        (&pace["batch"], &pace["sinceStep"]),
        (&json!(64), &json!(40))
    );
    let from = pace["fromFactor"].as_f64().unwrap();
    assert!((from - (1.0 + 2.0 * 20.0 / 30.0)).abs() < 1e-12, "{from}");
    weights
}

#[test]
fn same_changes_at_the_same_steps_give_the_same_weights() {
    assert!(train_in_three_parts() == train_in_three_parts());
}
