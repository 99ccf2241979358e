//! Invalid data: missing, truncated or corrupt files are named, or corrupt samples are skipped.

use std::path::Path;

use roundhouse_contract::Reason;
use serde_json::json;
use tempfile::TempDir;

use crate::harness::{Job, config, digits_copy};

const TRAIN_IMAGES: &str = "train-images-idx3-ubyte.gz";

fn assert_data_refused(data_dir: &Path, words: &[&str]) {
    let mut job = Job::start(&config(), data_dir, 2, 1);
    assert_eq!(job.exit_codes(), [Some(65), Some(65)], "{}", job.logs());
    for node in 0..2 {
        let failure = job.failure(node, 0);
        assert_eq!(failure.reason, Reason::DataInvalid);
        for word in words {
            assert!(
                failure.message.contains(word),
                "{word}: {}",
                failure.message
            );
        }
    }
}

#[test]
fn missing_data_is_named_by_every_rank() {
    assert_data_refused(
        Path::new("/nonexistent"),
        &["/nonexistent/train-images", "missing"],
    );
}

#[test]
fn corrupt_data_is_named_by_every_rank() {
    let data = digits_copy();
    let path = data.path().join(TRAIN_IMAGES);
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    assert_data_refused(data.path(), &[TRAIN_IMAGES, "truncated"]);
}

/// Twelve image files of two classes, one of which contains no image.
fn images() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for class in ["cats", "dogs"] {
        let folder = directory.path().join("train").join(class);
        std::fs::create_dir_all(&folder).unwrap();
        for number in 0..6_u8 {
            let file = std::fs::File::create(folder.join(format!("{number}.png"))).unwrap();
            let mut encoder = png::Encoder::new(file, 8, 8);
            encoder.set_color(png::ColorType::Rgb);
            let pixels = [number * 40; 8 * 8 * 3];
            let mut writer = encoder.write_header().unwrap();
            writer.write_image_data(&pixels).unwrap();
        }
    }
    let path = directory.path().join("train/dogs/3.png");
    std::fs::write(path, "no image").unwrap();
    directory
}

#[test]
fn corrupt_image_is_named_or_skipped_and_counted() {
    let data = images();
    let mut config = config();
    config["data"] = json!({"format": "imagefolder", "image": {"size": 8}});
    config["globalBatchSize"] = json!(4);
    config["steps"] = json!(12);
    let mut job = Job::start(&config, data.path(), 1, 1);
    assert_eq!(job.exit_codes(), [Some(65)], "{}", job.logs());
    let message = job.failure(0, 0).message;
    assert!(message.contains("dogs/3.png"), "{message}");

    config["data"]["reading"] = json!({"onCorrupt": "Skip"});
    let mut job = Job::train_on(&config, data.path(), 1, 1);
    job.complete();
    // Each of four epochs contains the corrupt image once.
    let skipped = job.metric(0, "roundhouse_train_corrupt_samples_total");
    assert!((skipped - 4.0).abs() < 0.5, "{skipped}\n{}", job.logs());
}

#[test]
fn token_out_of_range_is_named_or_skipped_and_counted() {
    // Twenty samples of eight tokens; the token at byte 102 is in the seventh.
    let data = tempfile::tempdir().unwrap();
    let mut tokens: Vec<u16> = (0..161).map(|at| at % 64).collect();
    tokens[51] = 64;
    let bytes: Vec<u8> = tokens.into_iter().flat_map(u16::to_le_bytes).collect();
    std::fs::write(data.path().join("train.bin"), bytes).unwrap();
    let mut config = config();
    config["model"] = json!({
        "name": "gpt2", "layers": 1, "heads": 2, "width": 16, "context": 8, "vocabulary": 64,
    });
    config["data"] = json!({"format": "tokens", "train": "train.bin", "tokens": {"context": 8}});
    config["globalBatchSize"] = json!(4);
    config["steps"] = json!(5);
    let mut job = Job::train_on(&config, data.path(), 1, 1);
    assert_eq!(job.exit_codes(), [Some(65)], "{}", job.logs());
    let message = job.failure(0, 0).message;
    assert!(
        message.contains("train.bin at byte 102: token 64 is out of range"),
        "{message}"
    );

    config["data"]["reading"] = json!({"onCorrupt": "Skip"});
    let mut job = Job::train_on(&config, data.path(), 1, 1);
    job.complete();
    let skipped = job.metric(0, "roundhouse_train_corrupt_samples_total");
    assert!((skipped - 1.0).abs() < 0.5, "{skipped}\n{}", job.logs());
}
