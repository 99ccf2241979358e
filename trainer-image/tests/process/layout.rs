//! Options for memory layout and communication: `channelsLast`, `ddp.compression`,
//! `ddp.staticGraph`.

use serde_json::{Value, json};

use crate::g03_elastic::short;
use crate::g05_parity::difference;
use crate::g07_checkpoints::checkpoints;
use crate::harness::{Job, assert_proven, digits, every_steps};

const STEPS: u64 = 60;

fn cnn() -> Value {
    let mut config = short();
    config["model"] = json!({"name": "cnn", "channels": [8, 16]});
    config
}

fn with_ddp(ddp: &Value) -> Value {
    let mut config = short();
    config["ddp"] = ddp.clone();
    config
}

/// Trains with one process, with two and three, and with a rank that is lost and replaced. Returns
/// the largest difference from the weights of one process.
pub(crate) fn greatest_difference(config: &Value) -> f64 {
    let mut alone = Job::train(config, 1, 1);
    alone.complete();
    let expected = alone.weights();
    let mut greatest = 0.0_f64;
    for nodes in [2, 3] {
        let mut job = Job::train(config, nodes, 1);
        job.complete();
        greatest = greatest.max(difference(&job.weights(), &expected));
    }
    let mut job = Job::with_kill(config, 2, 0, "0:20:Backward");
    assert_eq!(job.exit_code(0), None, "{}", job.logs());
    job.respawn(0);
    job.issue_to(2, &[1, 0]);
    job.complete();
    assert_proven(job.volume(), STEPS);
    greatest.max(difference(&job.weights(), &expected))
}

/// Asserts that a new generation of the same three workers does not change the bits.
fn assert_bits_survive_a_new_generation(config: &Value) {
    let mut config = config.clone();
    config["steps"] = json!(200);
    let expected = Job::train(&config, 3, 1).complete();
    let mut job = Job::start(&config, &digits(), 3, 1);
    job.wait_for("the lobby", |status| status.phase.is_ready());
    job.pace_steps(20);
    job.passes(1, &[0, 1, 2], 20);
    job.passes(2, &[0, 1, 2], 5);
    job.pace_steps(0);
    assert!(job.complete() == expected, "other bits\n{}", job.logs());
}

#[test]
fn channels_last_changes_only_rounding() {
    let mut config = cnn();
    let mut plain = Job::train(&config, 1, 1);
    plain.complete();
    config["channelsLast"] = json!(true);
    let found = greatest_difference(&config);
    println!("channelsLast: worlds differ by {found:.1e}");
    assert!(found <= 2e-6, "{found:e}");
    let mut last = Job::train(&config, 1, 1);
    last.complete();
    let found = difference(&last.weights(), &plain.weights());
    println!("channelsLast differs from the usual layout by {found:.1e}");
    assert!(found <= 1e-5, "{found:e}");
}

#[test]
fn channels_last_in_slices_is_bit_identical() {
    let mut config = short();
    config["model"] = json!({"name": "resnet18", "stem": "cifar", "ghostBatch": 4});
    config["channelsLast"] = json!(true);
    config["slices"] = json!(4);
    config["steps"] = json!(2);
    config["globalBatchSize"] = json!(16);
    config["eval"] = json!({"everyEpochs": 0});
    let [alone, two] = [1, 2].map(|nodes| Job::train(&config, nodes, 1).complete());
    assert!(alone == two, "other bits");
}

#[test]
fn channels_last_checkpoint_loads_without_channels_last() {
    let mut config = cnn();
    let mut whole = Job::train(&config, 1, 1);
    whole.complete();
    let volume = tempfile::tempdir().unwrap();
    let keep = || every_steps(volume.path().to_owned(), 20);
    config["channelsLast"] = json!(true);
    config["steps"] = json!(20);
    let mut first = Job::with_checkpoints(&config, 2, keep());
    first.issue_when_ready(1);
    first.complete();
    assert_eq!(checkpoints(volume.path()).len(), 1);
    config["channelsLast"] = json!(false);
    config["steps"] = json!(STEPS);
    let mut second = Job::with_checkpoints(&config, 1, keep());
    second.issue_when_ready(2);
    second.complete();
    assert_proven(volume.path(), STEPS);
    let found = difference(&second.weights(), &whole.weights());
    assert!(found <= 1e-5, "{found:e}");
}

#[test]
fn compressed_gradients_train_up_to_their_precision() {
    for (compression, tolerance) in [("bf16", 6e-2), ("fp16", 6e-3)] {
        let config = with_ddp(&json!({"compression": compression}));
        let found = greatest_difference(&config);
        println!("{compression}: worlds differ by {found:.1e}");
        assert!(
            found > 1e-6 && found <= tolerance,
            "{compression}: {found:e}"
        );
    }
    assert_bits_survive_a_new_generation(&with_ddp(&json!({"compression": "bf16"})));
}

#[test]
fn static_graph_does_not_depend_on_processes() {
    let mut config = with_ddp(&json!({"staticGraph": true}));
    // Each step has several passes, of which only the last one synchronizes.
    config["microBatchSize"] = json!(10);
    let found = greatest_difference(&config);
    println!("staticGraph: worlds differ by {found:.1e}");
    assert!(found <= 1e-6, "{found:e}");
    assert_bits_survive_a_new_generation(&config);
}
