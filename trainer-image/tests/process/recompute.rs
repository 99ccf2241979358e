//! `activationCheckpointing: Blocks` gives the same bits as a training that keeps all activations.

use serde_json::{Value, json};

use crate::g06_slices::write_tokens;
use crate::harness::{Job, config, digits};

/// A `gpt2` with dropout. Each rank runs several passes per step, of which only the last one
/// synchronizes.
fn gpt2() -> Value {
    let mut config = config();
    config["model"] = json!({
        "name": "gpt2", "layers": 2, "heads": 2, "width": 32, "context": 16, "vocabulary": 64, "dropout": 0.1,
    });
    config["data"] = json!({"format": "tokens", "train": "train.bin", "tokens": {"context": 16}});
    config["optimizer"] = json!({"name": "adamw", "learningRate": 0.001});
    config["globalBatchSize"] = json!(10);
    config["microBatchSize"] = json!(3);
    config["steps"] = json!(20);
    config
}

#[test]
fn recomputed_gpt2_on_two_ranks_is_bit_identical() {
    let directory = tempfile::tempdir().unwrap();
    write_tokens(directory.path());
    let weights = |config: &Value| Job::train_on(config, directory.path(), 2, 1).complete();
    let mut config = gpt2();
    for static_graph in [false, true] {
        config["ddp"] = json!({"staticGraph": static_graph});
        let [kept, recomputed] = ["None", "Blocks"].map(|switch| {
            config["activationCheckpointing"] = json!(switch);
            weights(&config)
        });
        assert!(
            recomputed == kept,
            "staticGraph: {static_graph}: other bits"
        );
    }
}

#[test]
fn recomputed_resnet18_in_bf16_is_bit_identical() {
    let mut config = config();
    config["model"] = json!({"name": "resnet18", "stem": "cifar", "ghostBatch": 4});
    config["precision"] = json!("bf16");
    config["globalBatchSize"] = json!(16);
    config["steps"] = json!(2);
    config["eval"] = json!({"everyEpochs": 0});
    let [kept, recomputed] = ["None", "Blocks"].map(|switch| {
        config["activationCheckpointing"] = json!(switch);
        Job::train(&config, 2, 1).complete()
    });
    assert!(recomputed == kept, "other bits");
}

#[test]
fn model_without_blocks_is_refused_with_advice() {
    let mut config = config();
    config["activationCheckpointing"] = json!("Blocks");
    let mut job = Job::start(&config, &digits(), 1, 1);
    job.exit_code(0);
    let logs = job.logs();
    assert!(
        logs.contains("trainer.activationCheckpointing: Blocks is for gpt2, bert"),
        "{logs}"
    );
}
