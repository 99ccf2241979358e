//! Good input trains, bad input is named.

use std::path::Path;

use roundhouse_contract::{ExitCode, Reason};
use serde_json::json;
use tempfile::TempDir;

use crate::harness::{Job, config, digits, digits_copy, images_of, trainer};

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

#[test]
fn an_unknown_key_is_named() {
    let mut config = config();
    config["optimizer"]["lerningRate"] = json!(1);
    let mut job = Job::start(&config, &digits(), 1, 1);
    assert_eq!(job.exit_codes(), [Some(64)]);
    let failure = job.failure(0, 0);
    assert_eq!(failure.reason, Reason::ConfigInvalid);
    assert!(
        failure.message.contains("lerningRate"),
        "{}",
        failure.message
    );
}

#[test]
fn a_model_that_does_not_fit_the_images_is_named() {
    let mut config = config();
    config["model"] = json!({"name": "cnn", "channels": [4, 4, 4, 4]});
    let mut job = Job::start(&config, &digits(), 1, 1);
    assert_eq!(job.exit_codes(), [Some(64)]);
    let message = job.failure(0, 0).message;
    assert!(
        message.contains("model.channels") && message.contains("at most 3"),
        "{message}"
    );
}

#[test]
fn a_training_that_diverges_says_what_to_change() {
    let mut config = config();
    config["optimizer"]["learningRate"] = json!(1e30);
    let mut job = Job::train(&config, 2, 1);
    assert_eq!(job.exit_codes(), [Some(64), Some(64)], "{}", job.logs());
    let message = job.failure(1, 0).message;
    assert!(message.contains("learningRate"), "{message}");
    // All ranks say the same: the loss of the whole batch, and where it is not finite.
    assert!(message.contains("training diverges on rank"), "{message}");
    let same = job.failure(0, 0).message;
    assert_eq!(message, same);
}

#[test]
fn a_missing_variable_is_named() {
    let output = trainer().output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&output.stderr).contains("LOCAL_RANK"));
}

#[test]
fn an_unknown_argument_is_a_wrong_configuration_and_help_is_not() {
    assert_eq!(
        trainer().arg("--nonsense").output().unwrap().status.code(),
        Some(64)
    );
    assert_eq!(
        trainer().arg("--help").output().unwrap().status.code(),
        Some(0)
    );
}

#[test]
fn digits_reach_95_percent_with_two_workers() {
    let mut config = config();
    config["model"] = json!({"name": "cnn"});
    config["schedule"] = json!({"name": "cosine", "warmupSteps": 20});
    config["steps"] = json!(480);
    let mut job = Job::train(&config, 2, 1);
    job.complete();
    let progress = job.progress();
    let accuracy = progress.eval_accuracy.unwrap();
    assert!(accuracy >= 0.95, "{accuracy}\n{}", job.logs());
    assert_eq!(
        (progress.step, progress.total_steps, progress.world_size),
        (480, 480, 2)
    );
    for node in 0..2 {
        let metrics = job.metrics(node, 0);
        let value = |name: &str| {
            let prefix = format!("roundhouse_train_{name} ");
            let line = metrics.lines().find_map(|line| line.strip_prefix(&prefix));
            line.and_then(|text| text.parse::<f64>().ok())
                .unwrap_or_else(|| panic!("{name} is not in:\n{metrics}"))
        };
        for (name, expected) in [
            ("step", 480.0),
            ("epoch", 20.0),
            ("world_size", 2.0),
            ("generation", 1.0),
            ("samples_total", 30_000.0),
            ("step_seconds_count", 480.0),
            ("eval_accuracy", accuracy),
        ] {
            assert!(
                (value(name) - expected).abs() < 1e-9,
                "{name} is {}",
                value(name)
            );
        }
    }
}

#[test]
fn a_process_trains_alone_without_an_agent() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let mut config = config();
    config["steps"] = json!(30);
    std::fs::write(path("config"), config.to_string()).unwrap();
    let output = trainer()
        .arg("--config")
        .arg(path("config"))
        .arg("--data-dir")
        .arg(digits())
        .arg("--save-weights")
        .arg(path("weights"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(text.contains("test accuracy"), "{text}");
    assert!(path("weights").exists());
}

/// Twelve images of two classes, one of which is no image.
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
fn a_corrupt_image_of_few_is_named_or_skipped_and_counted() {
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
    // Each of four epochs meets it once.
    let skipped = job.metric(0, "roundhouse_train_corrupt_samples_total");
    assert!((skipped - 4.0).abs() < 0.5, "{skipped}\n{}", job.logs());
}

#[test]
fn a_token_that_the_model_does_not_have_is_named_or_its_sample_skipped_and_counted() {
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

#[test]
fn a_batch_that_does_not_fit_into_memory_is_told_with_the_rank_and_what_to_change() {
    // The hidden layer of a rank's 4,000 images takes 1 GB.
    const LEFT: u64 = 700 << 20;
    let data = images_of(8_000, 4);
    let mut config = config();
    config["model"]["hidden"] = json!([65_536]);
    config["globalBatchSize"] = json!(8_000);
    config["eval"] = json!({"everyEpochs": 0});
    let mut job = Job::start(&config, data.path(), 2, 1);
    job.wait_for("the lobby", |status| status.phase.is_ready());
    for rank in 0..2 {
        job.limit_memory(rank, LEFT);
    }
    job.issue(1);
    let code = Some(ExitCode::Internal.code());
    assert_eq!(job.exit_codes(), [code, code], "{}", job.logs());
    for node in 0..2 {
        let message = job.failure(node, 0).message;
        for words in [
            &format!("rank {node}: out of memory"),
            "trainer.microBatchSize",
            "allocate",
        ] {
            assert!(message.contains(words), "{words}: {message}");
        }
    }
}

#[test]
fn a_device_that_breaks_in_a_step_is_a_hardware_fault_and_the_others_go_on() {
    let mut job = Job::with_broken_device(&config(), 2, 1, 20);
    let code = Some(ExitCode::HardwareFault.code());
    assert_eq!(job.exit_code(1), code, "{}", job.logs());
    let failure = job.failure(1, 0);
    assert_eq!(failure.reason, Reason::HardwareFault);
    assert!(failure.message.contains("ECC"), "{}", failure.message);
    assert_eq!(failure.step, 19);
    job.issue_to(2, &[0]);
    assert_eq!(job.exit_code(0), Some(0), "{}", job.logs());
}
