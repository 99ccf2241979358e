//! Batch normalization over all processes: `batchNorm: Sync` trains the same on any number of them, and a process that
//! is lost within a pass is a lost peer.

use serde_json::{Value, json};
use tch::Tensor;
use tempfile::TempDir;

use crate::elastic::undisturbed;
use crate::harness::{Job, assert_proven, config};
use crate::parity::difference;

const STEPS: u64 = 2;
/// Of the largest weight of each tensor, after the first steps.
const TOLERANCE: f64 = 1e-5;

fn synced(global_batch_size: u32) -> Value {
    let mut config = config();
    config["model"] = json!({"name": "resnet18", "stem": "cifar", "batchNorm": "Sync"});
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

#[test]
fn a_resnet18_normalized_over_all_processes_does_not_depend_on_their_number() {
    // Of 16 images, three processes have 5, 5 and 6.
    let config = synced(16);
    let expected = undisturbed(&config);
    for nodes in [2, 3] {
        let mut job = Job::train(&config, nodes, 1);
        job.complete();
        assert_same(&job, &expected, &format!("{nodes} processes"));
    }
}

/// A few images of 32×32, larger than the digits: with two of those the last layers would normalize two values, and the
/// rounding of their difference would decide.
fn images() -> TempDir {
    const NUM: u32 = 4;
    let directory = tempfile::tempdir().unwrap();
    let header = |kind: u32, sizes: &[u32]| -> Vec<u8> {
        let words = std::iter::once(&kind).chain(sizes);
        words.flat_map(|word| word.to_be_bytes()).collect()
    };
    let pixels =
        (0..NUM * 32 * 32).map(|at| u8::try_from(at.wrapping_mul(2_654_435_761) >> 24).unwrap());
    let labels = (0..NUM).map(|at| u8::try_from(at % 10).unwrap());
    let images: Vec<u8> = header(0x803, &[NUM, 32, 32])
        .into_iter()
        .chain(pixels)
        .collect();
    let labels: Vec<u8> = header(0x801, &[NUM]).into_iter().chain(labels).collect();
    for split in ["train", "t10k"] {
        let path = |name: &str| directory.path().join(format!("{split}-{name}-ubyte"));
        std::fs::write(path("images-idx3"), &images).unwrap();
        std::fs::write(path("labels-idx1"), &labels).unwrap();
    }
    directory
}

#[test]
fn a_process_without_images_takes_part_in_the_sums_of_a_normalization() {
    let images = images();
    let trained = |nodes| {
        let mut job = Job::start(&synced(2), images.path(), nodes, 1);
        job.issue_when_ready(1);
        job.complete();
        job
    };
    assert_same(
        &trained(3),
        &trained(1).weights(),
        "2 images on 3 processes",
    );
}

#[test]
fn a_process_killed_within_a_pass_that_shares_sums_is_a_lost_peer() {
    let config = synced(16);
    let expected = undisturbed(&config);
    // The others wait for it in the forward pass, then in the backward pass.
    for (victim, point) in [(1, "Forward"), (0, "Backward")] {
        let what = format!("rank {victim} killed at {point}");
        let mut job = Job::doomed(&config, 3, victim, &format!("{victim}:2:{point}"));
        assert_eq!(job.exit_code(victim as usize), None, "{}", job.logs());
        let survivors: Vec<u32> = (0..3).filter(|node| *node != victim).collect();
        job.issue_to(2, &survivors);
        for survivor in &survivors {
            assert_eq!(job.exit_code(*survivor as usize), Some(0), "{}", job.logs());
        }
        assert_same(&job, &expected, &what);
        assert_proven(job.volume(), STEPS);
    }
}
