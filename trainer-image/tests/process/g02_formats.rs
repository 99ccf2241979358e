//! Data of every format, read ahead from files: two processes train on it and one is killed;
//! weights and sample order do not change.

use std::path::Path;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::g05_parity::difference;
use crate::harness::data::{self, NUM_IMAGES};
use crate::harness::{Job, assert_proven, config};

const STEPS: u64 = 8;
const BATCH: u64 = 4;
/// Tolerance relative to the largest weight of each tensor: sums of two processes round differently
/// from those of one.
const TOLERANCE: f64 = 1e-5;

/// A training on files that `write` puts into a directory.
struct Case {
    name: &'static str,
    config: Value,
    files: TempDir,
}

fn case(name: &'static str, model: Value, data: Value, write: impl FnOnce(&Path)) -> Case {
    let files = tempfile::tempdir().unwrap();
    write(files.path());
    let mut config = config();
    config["model"] = model;
    config["data"] = data;
    config["globalBatchSize"] = json!(BATCH);
    config["steps"] = json!(STEPS);
    Case {
        name,
        config,
        files,
    }
}

/// A training on images of 8×8 pixels.
fn of_images(name: &'static str, mut data: Value, write: impl FnOnce(&Path)) -> Case {
    data["image"]["size"] = json!(8);
    case(name, json!({"name": "mlp", "hidden": [8]}), data, write)
}

/// A training on tokens below 64.
fn of_tokens(name: &'static str, mut data: Value, write: impl FnOnce(&Path)) -> Case {
    let model = json!({
        "name": "gpt2", "layers": 1, "heads": 2, "width": 16, "context": 8, "vocabulary": 64,
    });
    data["tokens"]["context"] = json!(8);
    case(name, model, data, write)
}

/// The cases. Each has an option that makes a process read samples ahead instead of keeping all in
/// memory.
fn cases() -> Vec<Case> {
    let skip = json!({"onCorrupt": "Skip", "threads": 2});
    vec![
        of_images(
            "imagefolder",
            json!({"format": "imagefolder", "image": {"augment": ["resizedCrop"]}}),
            |root| data::image_folder(&root.join("train")),
        ),
        of_images(
            "webdataset in blocks",
            json!({"format": "webdataset", "reading": skip, "shuffle": {"block": 3, "window": 2}}),
            |root| data::web_dataset(&root.join("train")),
        ),
        of_images(
            "tfrecord with augmentation",
            json!({"format": "tfrecord", "image": {"augment": ["crop", "flip", "randAugment"]}}),
            |root| data::tf_record(&root.join("train")),
        ),
        of_images(
            "parquet",
            json!({"format": "parquet", "reading": skip}),
            |root| data::parquet(&root.join("train")),
        ),
        of_images(
            "a mix",
            json!({"format": "webdataset", "mix": [
                {"train": "one", "weight": 3.0}, {"train": "other", "weight": 1.0},
            ]}),
            |root| {
                data::web_dataset(&root.join("one"));
                data::web_dataset(&root.join("other"));
            },
        ),
        of_tokens(
            "text",
            json!({"format": "text", "tokens": {"tokenizer": "tokenizer.json"}}),
            data::text,
        ),
        of_tokens(
            "tokens in blocks",
            json!({"format": "tokens", "train": "train.bin", "shuffle": {"block": 4, "window": 2}}),
            crate::g06_slices::write_tokens,
        ),
    ]
}

#[test]
fn kill_while_reading_ahead_changes_nothing() {
    for Case {
        name,
        config,
        files,
    } in cases()
    {
        let mut alone = Job::train_on(&config, files.path(), 1, 1);
        alone.complete();
        let mut job = Job::with_kill_on(&config, files.path(), 2, 1, "1:5:Backward");
        assert_eq!(job.exit_code(1), None, "{name}\n{}", job.logs());
        job.issue_to(2, &[0]);
        assert_eq!(job.exit_code(0), Some(0), "{name}\n{}", job.logs());
        // Only rank 0 describes the data in the log, and only once.
        let logs = job.logs();
        assert_eq!(logs.matches("train: ").count(), 1, "{name}\n{logs}");
        assert!(logs.contains("; no data for evaluations"), "{name}\n{logs}");
        let found = difference(&job.weights(), &alone.weights());
        assert!(found <= TOLERANCE, "{name}: {found:.1e}");
        assert_proven(job.volume(), STEPS);
        // The training takes more than one epoch of images.
        assert!(STEPS * BATCH > u64::from(NUM_IMAGES));
    }
}
