//! Trains the examples that fit on a small machine, with fewer steps and smaller models.

use std::path::Path;
use std::process::Command;

use roundhouse_tests::local::{LocalRun, Program};
use roundhouse_tests::manifests::{self, repository};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The TrainingJob of an example's file.
fn job(file: &str) -> Value {
    let documents = manifests::read(&format!("examples/{file}")).unwrap();
    let mut jobs = documents.into_iter();
    jobs.find(|document| document["kind"] == "TrainingJob")
        .unwrap()
}

/// Replaces values in the job's `trainer`. A null removes the field.
fn change(job: &mut Value, changes: Value) {
    fn merge(into: &mut Value, changes: Value) {
        let Value::Object(changes) = changes else {
            *into = changes;
            return;
        };
        for (name, value) in changes {
            if value.is_null() {
                let _ = into.as_object_mut().unwrap().remove(&name);
            } else {
                merge(&mut into[name], value);
            }
        }
    }
    merge(&mut job["spec"]["trainer"], changes);
}

/// Trains an example's job with two workers to its end.
fn train(mut job: Value, data: &Path) -> LocalRun {
    job["spec"]["workers"]["replicas"] = 2.into();
    // Training starts when both workers are ready.
    job["spec"]["elastic"]["joinWindowSeconds"] = 60.into();
    let program = Program {
        data: data.to_owned(),
        ..Program::built_in().unwrap()
    };
    let mut run = LocalRun::start_program(program, &job, &[("OMP_NUM_THREADS", "1")]).unwrap();
    assert!(run.end().unwrap().success(), "{}", run.output());
    run.audit().unwrap();
    run
}

/// Copies the play into a temporary directory, because the trainer writes its tokens beside it.
fn copy_of_play() -> TempDir {
    let copy = TempDir::new().unwrap();
    for entry in std::fs::read_dir(repository().join("examples/data/romeo")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }
    copy
}

/// A change to steps instead of epochs, without evaluations before the end.
fn short(steps: u64) -> Value {
    json!({"epochs": null, "steps": steps, "eval": null})
}

#[test]
fn resnet18_trains_on_the_generated_shapes() {
    let images = TempDir::new().unwrap();
    let script = repository().join("examples/data/make_shapes.py");
    let created = Command::new("python3")
        .args([script.as_os_str(), images.path().as_os_str()])
        .arg("5")
        .status();
    assert!(created.unwrap().success());
    let mut job = job("resnet18.yaml");
    change(&mut job, short(3));
    change(
        &mut job,
        json!({"globalBatchSize": 8, "model": {"ghostBatch": 4}}),
    );
    train(job, images.path());
}

#[test]
fn gpt2_trains_on_the_text_of_its_config_map() {
    let mut job = job("gpt2-romeo.yaml");
    change(&mut job, short(3));
    change(
        &mut job,
        json!({"globalBatchSize": 4, "model": {"layers": 1}}),
    );
    train(job, copy_of_play().path());
}

#[test]
fn bert_trains_on_text() {
    let mut job = job("bert-mlm.yaml");
    job["spec"]["workers"] = json!({});
    job["spec"].as_object_mut().unwrap().remove("checkpoint");
    change(&mut job, short(3));
    change(
        &mut job,
        json!({
            "model": {"layers": 1, "heads": 2, "width": 32, "vocabulary": 1025},
            "data": {"path": null, "train": "train.txt", "validation": "val.txt", "tokens": {"context": 32, "endOfText": null}},
            "globalBatchSize": 4,
            "microBatchSize": 2,
            "precision": null,
        }),
    );
    train(job, copy_of_play().path());
}

#[test]
fn slices_and_scale_batch_train_on_the_digits() {
    for file in ["slices.yaml", "scale-batch.yaml"] {
        let mut job = job(file);
        change(&mut job, short(5));
        train(job, &repository().join("examples/data/digits"));
    }
}
