//! Parity: N processes train to the same numbers as one process.

use serde_json::{Value, json};
use tch::Tensor;

use crate::harness::{Job, config};

/// Largest difference relative to the largest weight of the tensor; fp32 sums round differently in
/// another order.
const TOLERANCE: f64 = 1e-6;

/// Largest difference relative to the largest weight of the tensor. Every value must be finite.
pub(crate) fn difference(left: &[(String, Tensor)], right: &[(String, Tensor)]) -> f64 {
    assert_eq!(left.len(), right.len());
    assert!(!right.is_empty(), "there are no weights");
    let differences = left.iter().zip(right);
    differences
        .map(|((name, left), (other_name, right))| {
            assert_eq!(name, other_name);
            assert_eq!(left.size(), right.size(), "{name}");
            let greatest = |tensor: &Tensor| tensor.abs().max().double_value(&[]);
            for tensor in [left, right] {
                // Neither libtorch's nor Rust's `max` is reliable for NaN.
                let are_finite = bool::try_from(tensor.isfinite().all()).unwrap();
                assert!(are_finite, "{name}: a weight is not finite");
            }
            // Two tensors of zeros are equal. A difference from zeros is never small.
            greatest(&(left - right)) / greatest(right).max(f64::MIN_POSITIVE)
        })
        .fold(0.0, f64::max)
}

#[test]
fn difference_from_zeros_is_never_small() {
    let weights = |values: &[f32]| vec![("weight".to_owned(), Tensor::from_slice(values))];
    let zeros = weights(&[0.0, 0.0]);
    assert!(difference(&zeros, &zeros) == 0.0);
    assert!(difference(&weights(&[0.0, 1e-30]), &zeros) > 1.0);
    assert!(difference(&zeros, &weights(&[0.0, 1e-30])) > 0.999);
}

#[test]
fn weights_that_are_not_finite_are_never_equal() {
    let weights = |value: f32| vec![("weight".to_owned(), Tensor::from_slice(&[1.0, value]))];
    for value in [f32::NAN, f32::INFINITY] {
        for (left, right) in [(value, value), (value, 2.0), (2.0, value)] {
            let compared = std::panic::catch_unwind(|| difference(&weights(left), &weights(right)));
            assert!(compared.is_err(), "{left} beside {right}: {compared:?}");
        }
    }
}

fn assert_parity(case: &str, config: &Value) {
    let mut alone = Job::train(config, 1, 1);
    alone.complete();
    for (nodes, procs_per_worker) in [(2, 1), (3, 1), (1, 2)] {
        let mut job = Job::train(config, nodes, procs_per_worker);
        job.complete();
        let found = difference(&job.weights(), &alone.weights());
        println!("{case}: {nodes} x {procs_per_worker} differ from 1 by {found:.1e}");
        assert!(
            found <= TOLERANCE,
            "{case}, {nodes} x {procs_per_worker}: {found:.1e}"
        );
    }
}

fn adamw() -> Value {
    json!({"name": "adamw", "learningRate": 0.001, "weightDecay": 0.05})
}

fn cnn() -> Value {
    json!({"name": "cnn", "channels": [8, 16]})
}

/// Two epochs, because a step of this model takes much longer than one of the MLP.
const CNN_STEPS: u64 = 40;

#[test]
fn mlp_with_sgd_does_not_depend_on_processes() {
    assert_parity("mlp, sgd", &config());
}

#[test]
fn mlp_with_adamw_does_not_depend_on_processes() {
    let mut config = config();
    config["optimizer"] = adamw();
    assert_parity("mlp, adamw", &config);
}

#[test]
fn cnn_with_sgd_does_not_depend_on_processes() {
    let mut config = config();
    config["model"] = cnn();
    config["steps"] = json!(CNN_STEPS);
    assert_parity("cnn, sgd", &config);
}

#[test]
fn cnn_with_adamw_does_not_depend_on_processes() {
    let mut config = config();
    config["model"] = cnn();
    config["steps"] = json!(CNN_STEPS);
    config["optimizer"] = adamw();
    assert_parity("cnn, adamw", &config);
}

#[test]
fn micro_batches_do_not_change_the_numbers() {
    let mut whole = config();
    whole["globalBatchSize"] = json!(50);
    let mut alone = Job::train(&whole, 1, 1);
    alone.complete();
    // Three ranks: 16, 17 and 17 samples in three pieces each. Two ranks: 25 samples in four
    // pieces.
    whole["microBatchSize"] = json!(7);
    for nodes in [1, 2, 3] {
        let mut job = Job::train(&whole, nodes, 1);
        job.complete();
        let found = difference(&job.weights(), &alone.weights());
        println!("micro-batches: {nodes} differ from 1 without by {found:.1e}");
        assert!(found <= TOLERANCE, "{nodes} processes: {found:.1e}");
    }
}

#[test]
fn batch_smaller_than_the_world_leaves_a_rank_empty() {
    let mut config = config();
    config["globalBatchSize"] = json!(2);
    config["optimizer"]["learningRate"] = json!(0.01);
    let mut alone = Job::train(&config, 1, 1);
    alone.complete();
    let mut job = Job::train(&config, 3, 1);
    job.complete();
    let found = difference(&job.weights(), &alone.weights());
    assert!(found <= TOLERANCE, "{found:.1e}");
}

#[test]
fn same_number_of_processes_gives_the_same_bits() {
    let bytes = |nodes| Job::train(&config(), nodes, 1).complete();
    assert!(bytes(2) == bytes(2), "two processes");
    assert!(bytes(3) == bytes(3), "three processes");
}
