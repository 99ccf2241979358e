//! Steps whose loss is not finite: with `onNonFinite: Skip` all ranks commit them without an
//! update.

use std::path::Path;

use roundhouse_contract::Reason;
use serde_json::{Value, json};

use crate::g03_elastic::assert_same;
use crate::g07_checkpoints::{checkpoints, parts};
use crate::harness::{Job, assert_proven, audit, compared, config};

const STEPS: u64 = 50;
/// Steps whose loss is NaN.
const SPOILT: &str = "1,20,21,40";

fn skipping(steps: u64) -> Value {
    let mut config = config();
    config["steps"] = json!(steps);
    config["onNonFinite"] = json!("Skip");
    config["optimizer"] = json!({
        "name": "adamw", "learningRate": 0.001, "maxGradNorm": 1.0, "ema": {"decay": 0.9},
    });
    config
}

fn assert_skipped(job: &Job, num: u64) {
    assert_eq!(job.progress().skipped_steps, num);
    let found = job.metric(0, "roundhouse_train_skipped_steps");
    assert!((found - num as f64).abs() < 0.5, "{found}");
}

/// The parts of the newest checkpoint: weights, statistics, averages and the optimizer's state.
fn state(volume: &Path) -> Value {
    parts(&checkpoints(volume).pop().unwrap())
}

#[test]
fn skipped_steps_do_not_depend_on_the_number_of_processes() {
    let config = skipping(STEPS);
    let mut alone = Job::spoilt(&config, 1, 1, SPOILT, None);
    alone.complete();
    assert_skipped(&alone, 4);
    let expected = alone.weights();
    for (nodes, procs_per_worker) in [(2, 1), (3, 1), (1, 2)] {
        let mut job = Job::spoilt(&config, nodes, procs_per_worker, SPOILT, None);
        job.complete();
        assert_skipped(&job, 4);
        assert_same(
            &job,
            &expected,
            &format!("{nodes} x {procs_per_worker} processes"),
        );
        let (code, text) = audit(job.volume());
        assert_eq!(code, Some(0), "{text}");
        assert!(text.contains("proven: 50 of 50 steps"), "{text}");
        assert!(text.contains("4 steps were not finite"), "{text}");
    }
}

#[test]
pub(crate) fn skipped_step_changes_no_state() {
    let mut config = skipping(2);
    config["model"] = json!({"name": "resnet18", "stem": "cifar", "ghostBatch": 4});
    config["globalBatchSize"] = json!(16);
    config["eval"] = json!({"everyEpochs": 0});
    let trained = |config: &Value, spoilt: &str| {
        let mut job = Job::spoilt(config, 2, 1, spoilt, None);
        job.complete();
        job
    };
    let before = trained(&config, "");
    config["steps"] = json!(3);
    let after = trained(&config, "3");
    assert_skipped(&after, 1);
    assert_eq!(state(before.volume()), state(after.volume()));
}

#[test]
pub(crate) fn skipped_steps_in_slices_are_bit_identical() {
    let mut config = skipping(STEPS);
    config["slices"] = json!(4);
    let mut alone = Job::spoilt(&config, 1, 1, SPOILT, None);
    let expected = alone.complete();
    let compare = |job: &Job, what: &str| {
        assert!(job.bytes_of_weights() == expected, "{what}: other bits");
        let (code, text) = compared(alone.volume(), job.volume());
        assert_eq!(code, Some(0), "{what}: {text}");
        assert!(text.contains("samples and losses of 50 steps"), "{text}");
    };
    for nodes in [2, 3] {
        let mut job = Job::spoilt(&config, nodes, 1, SPOILT, None);
        job.complete();
        compare(&job, &format!("{nodes} processes"));
    }
    for (victim, point) in [(0, "Update"), (1, "Commit")] {
        let what = format!("rank {victim} killed at {point}");
        let fault = format!("{victim}:20:{point}");
        let mut job = Job::spoilt(&config, 3, 1, SPOILT, Some((victim, &fault)));
        assert_eq!(job.exit_code(victim as usize), None, "{}", job.logs());
        let survivors = job.others(victim);
        job.issue_to(2, &survivors);
        for survivor in &survivors {
            assert_eq!(job.exit_code(*survivor as usize), Some(0), "{}", job.logs());
        }
        compare(&job, &what);
        assert_proven(job.volume(), STEPS);
    }
}

#[test]
fn ledger_distinguishes_skipped_steps_from_updates() {
    let config = skipping(10);
    let [skipped, updated] = ["10", ""].map(|steps| {
        let mut job = Job::spoilt(&config, 1, 1, steps, None);
        job.complete();
        job
    });
    let (code, text) = compared(skipped.volume(), updated.volume());
    assert_eq!(code, Some(65), "{text}");
    assert!(
        text.contains("different from step 10 on: skipped and updated"),
        "{text}"
    );
}

#[test]
pub(crate) fn too_many_consecutive_skips_end_the_training() {
    let mut config = skipping(STEPS);
    config["maxConsecutiveSkips"] = json!(3);
    let mut job = Job::spoilt(&config, 2, 1, "4,5,10,11,12,13", None);
    assert_eq!(job.exit_codes(), [Some(64), Some(64)], "{}", job.logs());
    for node in 0..2 {
        let failure = job.failure(node, 0);
        assert_eq!(failure.reason, Reason::ConfigInvalid);
        let message = failure.message;
        for words in [
            "step 13: loss NaN",
            "on rank 0",
            "no step of the 3 before it",
        ] {
            assert!(message.contains(words), "{words}: {message}");
        }
    }
}

#[test]
fn consecutive_skips_are_counted_across_a_kill() {
    let mut config = skipping(STEPS);
    config["maxConsecutiveSkips"] = json!(4);
    // Rank 0 is lost after two skipped steps, and a worker without a state replaces it.
    let mut job = Job::spoilt(&config, 2, 1, "10,11,12,13,14", Some((0, "0:12:Forward")));
    assert_eq!(job.exit_code(0), None, "{}", job.logs());
    job.respawn(0);
    job.issue_to(2, &[0, 1]);
    assert_eq!(job.exit_codes(), [Some(64), Some(64)], "{}", job.logs());
    for node in 0..2 {
        let message = job.failure(node, 0).message;
        assert!(message.contains("step 14: loss NaN"), "{message}");
    }
}

#[test]
pub(crate) fn non_finite_loss_ends_the_training_by_default() {
    let mut config = skipping(STEPS);
    config["onNonFinite"] = json!("Fail");
    let mut job = Job::spoilt(&config, 2, 1, "20", None);
    assert_eq!(job.exit_codes(), [Some(64), Some(64)], "{}", job.logs());
    let message = job.failure(1, 0).message;
    assert!(
        message.contains("step 20: loss NaN") && message.contains("diverges on rank 0;"),
        "{message}"
    );
}
