//! Invalid data on the volume: a damaged checkpoint, a checkpoint of another training, and a
//! modified ledger.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use roundhouse_contract::Reason;
use serde_json::json;

use crate::g03_elastic::{assert_same, undisturbed};
use crate::g07_checkpoints::{EVERY, beyond, checkpoints, start, train_and_kill, training};
use crate::harness::{Job, assert_proven, audit, compared, every_steps};

#[test]
fn damaged_checkpoint_is_skipped_for_an_older_one() {
    for damage in ["shard", "manifest", "nothing left"] {
        let volume = tempfile::tempdir().unwrap();
        train_and_kill(2, volume.path(), 1);
        // Train until there are several checkpoints.
        let mut job = start(&beyond(volume.path()), 2, volume.path(), 2);
        job.complete();
        let newest = checkpoints(volume.path()).pop().unwrap();
        match damage {
            "shard" => {
                let path = newest.join("shard-00001-of-00002.safetensors");
                let size = std::fs::metadata(&path).unwrap().len();
                let file = OpenOptions::new().write(true).open(path).unwrap();
                file.write_all_at(&[0xff; 4], size - 9).unwrap();
            }
            "manifest" => std::fs::write(newest.join("manifest.json"), "{").unwrap(),
            _ => {
                std::fs::remove_dir_all(&newest).unwrap();
                std::fs::create_dir(&newest).unwrap();
            }
        }
        let config = beyond(volume.path());
        let mut job = start(&config, 2, volume.path(), 3);
        job.complete();
        assert!(
            job.logs().contains("skipping a checkpoint"),
            "{}",
            job.logs()
        );
        assert_same(&job, &undisturbed(&config), damage);
        assert_proven(volume.path(), config["steps"].as_u64().unwrap());
    }
}

#[test]
fn briefly_unreadable_checkpoint_is_not_skipped() {
    for name in ["manifest.json", "shard-00001-of-00002.safetensors"] {
        let volume = tempfile::tempdir().unwrap();
        train_and_kill(2, volume.path(), 1);
        let newest = checkpoints(volume.path()).pop().unwrap();
        let config = beyond(volume.path());
        let checkpoint = every_steps(volume.path().to_owned(), EVERY);
        let mut job = Job::with_stale_handle(&config, 2, checkpoint, &newest.join(name));
        std::thread::sleep(Duration::from_secs(1));
        job.end_stale();
        job.issue_when_ready(3);
        job.complete();
        assert!(
            !job.logs().contains("skipping a checkpoint"),
            "{}",
            job.logs()
        );
        assert_same(&job, &undisturbed(&config), name);
    }
}

#[test]
fn damaged_checkpoints_are_never_deleted() {
    let volume = tempfile::tempdir().unwrap();
    train_and_kill(1, volume.path(), 1);
    for checkpoint in checkpoints(volume.path()) {
        std::fs::write(checkpoint.join("manifest.json"), "").unwrap();
    }
    let mut job =
        Job::with_checkpoints(&training(), 1, every_steps(volume.path().to_owned(), EVERY));
    assert_eq!(job.exit_codes(), [Some(65)]);
    let failure = job.failure(0, 0);
    assert!(
        failure.message.contains("begin again"),
        "{}",
        failure.message
    );
}

#[test]
fn checkpoint_of_another_training_is_refused() {
    let volume = tempfile::tempdir().unwrap();
    train_and_kill(1, volume.path(), 1);
    for (change, word) in [
        (json!({"seed": 8}), "seed 7"),
        (json!({"globalBatchSize": 32}), "globalBatchSize"),
        (
            json!({"model": {"name": "mlp", "hidden": [16]}}),
            "model.fc1.weight",
        ),
        (json!({"optimizer": {"name": "adamw"}}), "optimizer.name"),
    ] {
        let mut config = training();
        for (key, value) in change.as_object().unwrap() {
            config[key] = value.clone();
        }
        let mut job =
            Job::with_checkpoints(&config, 1, every_steps(volume.path().to_owned(), EVERY));
        assert_eq!(job.exit_codes(), [Some(64)], "{}", job.logs());
        let failure = job.failure(0, 0);
        assert_eq!(failure.reason, Reason::ConfigInvalid);
        assert!(failure.message.contains(word), "{}", failure.message);
    }
}

#[test]
fn audit_names_modified_ledger_lines() {
    let volume = tempfile::tempdir().unwrap();
    let mut config = training();
    config["steps"] = json!(60);
    start(&config, 2, volume.path(), 1).complete();
    assert_proven(volume.path(), 60);
    let path = volume.path().join("ledger/gen-0000000001.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    let expect = |text: String, word: &str| {
        std::fs::write(&path, text).unwrap();
        let (code, words) = audit(volume.path());
        assert_eq!(code, Some(65), "{words}");
        assert!(words.contains(word), "{words}");
    };
    expect(
        text.replace("\"start\":64,", "\"start\":63,"),
        "step 2: the hash is broken",
    );
    let without: Vec<&str> = text
        .lines()
        .filter(|line| !line.contains("\"step\":31,"))
        .collect();
    expect(without.join("\n") + "\n", "step 32: the hash is broken");
    let shorter: Vec<&str> = text.lines().take(50).collect();
    expect(
        shorter.join("\n") + "\n",
        "a checkpoint was saved after step 60",
    );
    expect(String::new(), "there is no ledger");
}

#[test]
fn comparison_names_the_directory_without_a_ledger() {
    let [left, right] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let mut config = training();
    config["steps"] = json!(3);
    start(&config, 1, left.path(), 1).complete();
    let (code, words) = compared(left.path(), right.path());
    assert_eq!(code, Some(65), "{words}");
    let ledger = right.path().join("ledger");
    let expected = format!("not compared: {}: there is no ledger", ledger.display());
    assert!(words.contains(&expected), "{words}");
}
