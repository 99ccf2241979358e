//! Batch normalization does not depend on the number of processes, neither over fixed groups of
//! images (`ghostBatch`) nor over the images of all processes (`batchNorm: Sync`). With the latter,
//! a process that is lost within a pass counts as a lost peer.

use std::path::Path;

use serde_json::{Value, json};
use tch::Tensor;
use tempfile::TempDir;

use crate::g05_parity::difference;
use crate::harness::{Job, assert_proven, config, digits, images_of};

/// After one step, weights differ by the rounding of the gradients' sums. In later steps a value
/// near the threshold of a `ReLU` may cross it, which changes gradients by percents, even in one
/// process with another `microBatchSize`. Trainings in slices show that later steps are equal, too.
const STEPS: u64 = 1;
/// Tolerance relative to the largest weight of each tensor.
const TOLERANCE: f64 = 1e-5;

fn synced(global_batch_size: u32) -> Value {
    resnet18(global_batch_size, &json!({"batchNorm": "Sync"}))
}

/// Normalization over four groups of four images.
fn ghost() -> Value {
    resnet18(16, &json!({"ghostBatch": 4}))
}

/// Images for [`ghost`]. They are larger than the digits, so the last layers normalize 16 values of
/// a group.
fn images() -> TempDir {
    images_of(32, 16)
}

/// A training of a ResNet-18 with the given normalization.
fn resnet18(global_batch_size: u32, normalization: &Value) -> Value {
    let mut config = config();
    config["model"] = normalization.clone();
    config["model"]["name"] = json!("resnet18");
    config["model"]["stem"] = json!("cifar");
    config["globalBatchSize"] = json!(global_batch_size);
    config["optimizer"]["learningRate"] = json!(0.01);
    config["steps"] = json!(STEPS);
    config["eval"] = json!({"everyEpochs": 0});
    config
}

fn assert_same(job: &Job, expected: &[(String, Tensor)], what: &str) {
    let found = difference(&job.weights(), expected);
    println!("{what}: differs from 1 by {found:.1e}");
    assert!(found <= TOLERANCE, "{what}: {found:.1e}\n{}", job.logs());
}

fn trained(config: &Value, data_dir: &Path, nodes: u32) -> Job {
    let mut job = Job::train_on(config, data_dir, nodes, 1);
    job.complete();
    job
}

fn assert_same_on_any_number_of_processes(config: &Value, data_dir: &Path) {
    let expected = trained(config, data_dir, 1).weights();
    for nodes in [2, 3] {
        let job = trained(config, data_dir, nodes);
        assert_same(&job, &expected, &format!("{nodes} processes"));
    }
}

#[test]
fn synced_resnet18_does_not_depend_on_processes() {
    // Three processes have 5, 5 and 6 of 16 images.
    assert_same_on_any_number_of_processes(&synced(16), &digits());
}

#[test]
fn ghost_batches_do_not_depend_on_processes() {
    // Three processes have 1, 1 and 2 of four groups.
    assert_same_on_any_number_of_processes(&ghost(), images().path());
}

#[test]
fn process_without_images_joins_the_normalization() {
    // Larger images than the digits: with two digits the last layers would normalize two values,
    // and the rounding of their difference would determine the result.
    let images = images_of(4, 32);
    let trained = |nodes| trained(&synced(2), images.path(), nodes);
    assert_same(
        &trained(3),
        &trained(1).weights(),
        "2 images on 3 processes",
    );
}

/// Kills one of three ranks in the last step. A kill is (rank, point).
fn assert_same_after_kills(config: &Value, data_dir: &Path, kills: [(u32, &str); 2]) {
    let expected = trained(config, data_dir, 1).weights();
    let steps = config["steps"].as_u64().unwrap();
    for (victim, point) in kills {
        let what = format!("rank {victim} killed at {point}");
        let fault = format!("{victim}:{steps}:{point}");
        let mut job = Job::with_kill_on(config, data_dir, 3, victim, &fault);
        assert_eq!(job.exit_code(victim as usize), None, "{}", job.logs());
        let survivors = job.others(victim);
        job.issue_to(2, &survivors);
        for survivor in &survivors {
            assert_eq!(job.exit_code(*survivor as usize), Some(0), "{}", job.logs());
        }
        assert_same(&job, &expected, &what);
        assert_proven(job.volume(), steps);
    }
}

#[test]
fn process_killed_within_a_synced_pass_is_a_lost_peer() {
    // The others wait for it in the forward pass, then in the backward pass.
    let kills = [(1, "Forward"), (0, "Backward")];
    assert_same_after_kills(&synced(16), &digits(), kills);
}

#[test]
fn kill_with_ghost_batches_does_not_change_the_weights() {
    let kills = [(1, "Backward"), (0, "Commit")];
    assert_same_after_kills(&ghost(), images().path(), kills);
}
