//! Trainings that start with the weights of another training (`initFrom`).

use std::path::Path;

use roundhouse_contract::Reason;
use serde_json::{Value, json};
use tch::Tensor;

use crate::harness::{Job, config, digits_copy};

const FILE: &str = "weights.safetensors";

/// A training of one step that is too small to change a weight.
fn first_step(init_from: &Value) -> Value {
    let mut config = config();
    config["seed"] = json!(8);
    config["optimizer"]["learningRate"] = json!(1e-30);
    config["steps"] = json!(1);
    if !init_from.is_null() {
        config["model"]["initFrom"] = init_from.clone();
    }
    config
}

fn train(config: &Value, data_dir: &Path) -> Job {
    let mut job = Job::train_on(config, data_dir, 2, 1);
    job.complete();
    job
}

/// The loss of the last step and of the final evaluation.
fn losses(job: &Job) -> [f64; 2] {
    let progress = job.progress();
    [progress.loss.unwrap(), progress.eval_loss.unwrap()]
}

fn weight<'a>(weights: &'a [(String, Tensor)], name: &str) -> &'a Tensor {
    let found = weights.iter().find(|(own, _)| own == name);
    &found.unwrap_or_else(|| panic!("no {name}")).1
}

#[test]
fn training_starts_from_exported_weights_except_skipped() {
    let data = digits_copy();
    let mut former = train(&config(), data.path());
    std::fs::write(data.path().join(FILE), former.complete()).unwrap();
    let random = train(&first_step(&Value::Null), data.path());
    let whole = train(&first_step(&json!({"path": FILE})), data.path());
    let skip = json!({"path": FILE, "skip": ["fc2."]});
    let in_part = train(&first_step(&skip), data.path());

    // The same weights give the same evaluation.
    let [_, former_loss] = losses(&former);
    let [first_loss, loss] = losses(&whole);
    assert!((loss - former_loss).abs() < 1e-9, "{loss}, {former_loss}");
    let [random_loss, _] = losses(&random);
    assert!(
        first_loss < 0.5 * random_loss,
        "{first_loss}, {random_loss}"
    );
    let [loss_in_part, _] = losses(&in_part);
    assert!(
        loss_in_part > 2.0 * first_loss,
        "{loss_in_part}, {first_loss}"
    );

    let (former, random) = (former.weights(), random.weights());
    for (job, of_fc2) in [(&whole, &former), (&in_part, &random)] {
        let weights = job.weights();
        for (name, expected) in [
            ("fc1.weight", &former),
            ("fc1.bias", &former),
            ("fc2.weight", of_fc2),
            ("fc2.bias", of_fc2),
        ] {
            let equal = weight(&weights, name).equal(weight(expected, name));
            assert!(equal, "{name} differs");
        }
    }
}

#[test]
fn missing_weights_file_is_named_by_every_rank() {
    let data = digits_copy();
    let config = first_step(&json!({"path": FILE}));
    let mut job = Job::start(&config, data.path(), 2, 1);
    assert_eq!(job.exit_codes(), [Some(65), Some(65)], "{}", job.logs());
    let failure = job.failure(1, 0);
    assert_eq!(failure.reason, Reason::DataInvalid);
    assert!(failure.message.contains(FILE), "{}", failure.message);
}
