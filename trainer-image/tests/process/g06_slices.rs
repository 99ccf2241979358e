//! With `slices` a training is bit-identical for every number of processes and every history of
//! faults.

use std::path::Path;

use serde_json::{Value, json};

use crate::g03_elastic::STEPS;
use crate::harness::{Job, assert_proven, compared, config, digits, every_steps};

/// The configuration of a training in slices.
fn sliced(model: &Value, steps: u64) -> Value {
    let mut config = config();
    config["model"] = model.clone();
    config["steps"] = json!(steps);
    config["slices"] = json!(4);
    config
}

fn mlp() -> Value {
    sliced(&json!({"name": "mlp", "hidden": [32]}), STEPS)
}

/// Trains with this number of workers. Returns the bytes of the weights.
fn weights(config: &Value, data_dir: &Path, nodes: u32, procs_per_worker: u32) -> Vec<u8> {
    Job::train_on(config, data_dir, nodes, procs_per_worker).complete()
}

fn assert_equal_for_every_world(config: &Value, data_dir: &Path) {
    let alone = weights(config, data_dir, 1, 1);
    for (nodes, procs_per_worker) in [(2, 1), (3, 1), (1, 2), (4, 1)] {
        let found = weights(config, data_dir, nodes, procs_per_worker);
        assert!(
            found == alone,
            "{nodes} x {procs_per_worker} processes: other bits"
        );
    }
}

#[test]
fn mlp_in_slices_is_bit_identical() {
    let mut config = mlp();
    assert_equal_for_every_world(&config, &digits());
    config["optimizer"] = json!({"name": "adamw", "learningRate": 0.001, "maxGradNorm": 1.0});
    config["microBatchSize"] = json!(5);
    assert_equal_for_every_world(&config, &digits());
}

fn resnet18() -> Value {
    let model = json!({"name": "resnet18", "stem": "cifar", "ghostBatch": 4});
    let mut config = sliced(&model, 3);
    config["globalBatchSize"] = json!(16);
    config["eval"] = json!({"everyEpochs": 0});
    config
}

#[test]
fn resnet18_in_slices_is_bit_identical() {
    assert_equal_for_every_world(&resnet18(), &digits());
}

#[test]
fn deterministic_kernels_do_not_change_the_bits() {
    let plain = weights(&resnet18(), &digits(), 2, 1);
    let mut config = resnet18();
    // The switch also fills new memory with NaN, which no operation may read.
    config["deterministic"] = json!(true);
    assert!(weights(&config, &digits(), 2, 1) == plain, "other bits");
}

/// Writes a file of 4,000 tokens below 61.
pub(crate) fn write_tokens(directory: &Path) {
    let tokens = (0..4_000_u32).map(|place| u16::try_from(place * place % 61).unwrap());
    let bytes: Vec<u8> = tokens.flat_map(u16::to_le_bytes).collect();
    std::fs::write(directory.join("train.bin"), bytes).unwrap();
}

/// A training on the tokens of [`write_tokens`].
fn gpt2(steps: u64) -> Value {
    let model = json!({
        "name": "gpt2", "layers": 2, "heads": 2, "width": 32, "context": 16, "vocabulary": 64, "dropout": 0.1,
    });
    let mut config = sliced(&model, steps);
    config["data"] = json!({"format": "tokens", "train": "train.bin", "tokens": {"context": 16}});
    config["optimizer"] = json!({"name": "adamw", "learningRate": 0.001});
    config["globalBatchSize"] = json!(10);
    config
}

#[test]
fn llama_with_grouped_queries_in_slices_is_bit_identical() {
    let directory = tempfile::tempdir().unwrap();
    write_tokens(directory.path());
    let mut config = gpt2(5);
    config["model"] = json!({
        "name": "llama", "layers": 2, "heads": 4, "numKeyValueHeads": 2, "width": 32, "innerWidth": 48, "context": 16,
        "vocabulary": 64, "dropout": 0.1,
    });
    assert_equal_for_every_world(&config, directory.path());
}

#[test]
fn experts_of_a_switch_in_slices_are_bit_identical() {
    let directory = tempfile::tempdir().unwrap();
    write_tokens(directory.path());
    let mut config = gpt2(5);
    config["model"]["name"] = json!("switch");
    config["model"]["numExperts"] = json!(4);
    assert_equal_for_every_world(&config, directory.path());
}

#[test]
fn gpt2_with_dropout_in_slices_is_bit_identical() {
    let directory = tempfile::tempdir().unwrap();
    write_tokens(directory.path());
    assert_equal_for_every_world(&gpt2(20), directory.path());
}

/// Kills a rank at a point of a step, continues without it, and compares the weights. A case is
/// (point, number of ranks, killed rank).
fn assert_kills_change_no_bit(
    config: &Value,
    data_dir: &Path,
    step: u64,
    kills: &[(&str, u32, u32)],
) {
    let name = &config["model"]["name"];
    let expected = weights(config, data_dir, 1, 1);
    for (point, world, victim) in kills {
        let fault = format!("{victim}:{step}:{point}");
        let mut job = Job::with_kill_on(config, data_dir, *world, *victim, &fault);
        assert_eq!(job.exit_code(*victim as usize), None, "{}", job.logs());
        let survivors: Vec<u32> = (0..*world).filter(|node| node != victim).collect();
        job.issue_to(2, &survivors);
        for survivor in &survivors {
            assert_eq!(job.exit_code(*survivor as usize), Some(0), "{}", job.logs());
        }
        let is_equal = job.bytes_of_weights() == expected;
        assert!(
            is_equal,
            "{name}: rank {victim} of {world} at {point}: other bits"
        );
        assert_proven(job.volume(), config["steps"].as_u64().unwrap());
    }
}

#[test]
fn killed_rank_changes_no_bit() {
    let kills = [
        ("Forward", 2, 0),
        ("Forward", 3, 1),
        ("Backward", 2, 1),
        ("Backward", 4, 0),
        ("Agree", 3, 2),
        ("Update", 3, 0),
        ("Commit", 2, 0),
        ("Commit", 4, 2),
    ];
    assert_kills_change_no_bit(&mlp(), &digits(), 20, &kills);
}

#[test]
fn killed_rank_of_gpt2_with_dropout_changes_no_bit() {
    let directory = tempfile::tempdir().unwrap();
    write_tokens(directory.path());
    let kills = [
        ("Forward", 2, 1),
        ("Backward", 3, 1),
        ("Agree", 4, 0),
        ("Update", 3, 2),
        ("Commit", 2, 0),
    ];
    assert_kills_change_no_bit(&gpt2(3), directory.path(), 2, &kills);
}

#[test]
fn killed_rank_of_resnet18_changes_no_bit() {
    let kills = [
        ("Forward", 2, 0),
        ("Backward", 2, 1),
        ("Agree", 3, 2),
        ("Update", 2, 1),
        ("Commit", 3, 0),
    ];
    assert_kills_change_no_bit(&resnet18(), &digits(), 2, &kills);
}

const LONG: u64 = 600;

/// Compares an undisturbed job with a job that grows, shrinks and is suspended.
fn assert_history_changes_no_bit(optimizer: &Value) {
    let mut config = sliced(&json!({"name": "mlp", "hidden": [32]}), LONG);
    config["optimizer"] = optimizer.clone();
    let volumes = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let keep = |at: usize| every_steps(volumes[at].path().to_owned(), 200);

    let mut alone = Job::with_checkpoints(&config, 1, keep(0));
    alone.issue_when_ready(1);
    let expected = alone.complete();

    let mut job = Job::with_checkpoints(&config, 3, keep(1));
    job.pace_steps(20);
    job.wait_for("the lobby", |status| status.phase.is_ready());
    job.passes(1, &[0], 20);
    job.passes(2, &[0, 1, 2], 20);
    job.dismiss(3, 0);
    job.passes(3, &[1, 2], 20);
    assert_eq!(job.exit_code(0), Some(143));
    for rank in [1, 2] {
        job.signal(rank, "-TERM");
    }
    for rank in [1, 2] {
        assert_eq!(job.exit_code(rank), Some(143), "{}", job.logs());
    }
    drop(job);
    let mut resumed = Job::with_checkpoints(&config, 2, keep(1));
    resumed.wait_for("the lobby", |status| status.phase.is_ready());
    resumed.issue(4);
    assert!(resumed.complete() == expected, "other bits");

    let (code, text) = compared(volumes[0].path(), volumes[1].path());
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains(&format!("samples and losses of {LONG} steps")),
        "{text}"
    );
    assert!(
        text.contains(&format!("the state after step {LONG}")),
        "{text}"
    );
}

#[test]
fn resizing_and_suspending_changes_no_bit() {
    assert_history_changes_no_bit(&config()["optimizer"]);
}

#[test]
fn resizing_with_lars_or_lamb_changes_no_bit() {
    let ema = json!({"decay": 0.99});
    assert_history_changes_no_bit(&json!({"name": "lars", "learningRate": 0.5, "ema": ema}));
    assert_history_changes_no_bit(&json!({"name": "lamb", "learningRate": 0.002}));
}

#[test]
fn comparison_names_the_first_different_step() {
    let volumes = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    for (volume, rate) in volumes.iter().zip([0.05, 0.06]) {
        let mut config = mlp();
        config["optimizer"]["learningRate"] = json!(rate);
        let mut job = Job::with_checkpoints(&config, 1, every_steps(volume.path().to_owned(), 20));
        job.issue_when_ready(1);
        job.complete();
    }
    let (code, text) = compared(volumes[0].path(), volumes[1].path());
    assert_eq!(code, Some(65), "{text}");
    // The loss of the first step is that of the initial weights.
    assert!(text.contains("different from step 2 on"), "{text}");
}
