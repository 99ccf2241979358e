//! A user's program with a custom model and custom data: `examples/own-model`.

use roundhouse_tests::local::{LocalRun, Program, programs};
use roundhouse_tests::manifests;
use roundhouse_tests::processes::send;
use roundhouse_tests::weights::difference;
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

const STEPS: u64 = 300;
/// Milliseconds added to each step, so that a kill finds the job training.
const PAUSE_MILLIS: u64 = 100;
const FILE: &str = "constituents.txt";

/// The example's job, and its data in a temporary directory.
struct Example {
    data: TempDir,
    job: Value,
}

impl Example {
    fn read(workers: u32) -> Self {
        let manifests = manifests::read("examples/own-model/trainingjob.yaml").unwrap();
        let [config_map, mut job]: [Value; 2] = manifests.try_into().unwrap();
        let data = tempfile::tempdir().unwrap();
        let text = config_map["data"][FILE].as_str().unwrap();
        std::fs::write(data.path().join(FILE), text).unwrap();
        job["spec"]["workers"]["replicas"] = workers.into();
        // Training starts when all workers are ready.
        job["spec"]["elastic"] = json!({"joinWindowSeconds": 60});
        let trainer = job["spec"]["trainer"].as_object_mut().unwrap();
        trainer.remove("epochs");
        trainer.insert("steps".to_owned(), STEPS.into());
        Self { data, job }
    }

    fn start(&self, program: &str) -> LocalRun {
        let program = Program {
            trainer: programs().unwrap().join(program),
            data: self.data.path().to_owned(),
        };
        LocalRun::start_program(program, &self.job, &[]).unwrap()
    }
}

/// The output of a job that must fail with `ConfigInvalid`.
fn failure(mut run: LocalRun) -> String {
    assert_eq!(run.end().unwrap().code(), Some(1), "{}", run.output());
    let output = run.output();
    assert!(output.contains("ConfigInvalid"), "{output}");
    output
}

#[test]
fn killed_worker_leaves_weights_of_own_model_equal() {
    let example = Example::read(1);
    let mut alone = example.start("own-model");
    assert!(alone.end().unwrap().success(), "{}", alone.output());
    let example = Example::read(2);
    let mut run = example.start("own-model");
    run.slow_down(PAUSE_MILLIS).unwrap();
    run.wait_for("steps", |run| run.step() > 20).unwrap();
    assert!(send(run.agents()[0].ranks[0], Signal::KILL));
    run.wait_for("both workers in one generation", |run| {
        run.generation() >= 3 && run.agents().len() == 2
    })
    .unwrap();
    run.slow_down(0).unwrap();
    assert!(run.end().unwrap().success(), "{}", run.output());
    run.audit().unwrap();
    let apart = difference(&alone.weights().unwrap(), &run.weights().unwrap()).unwrap();
    println!("weights differ by {apart:e}");
    assert!(apart < 1e-5, "{apart:e}");
}

#[test]
fn processes_of_a_worker_can_divide_an_own_model() {
    let [alone, divided] = [1, 2].map(|processes| {
        let mut example = Example::read(1);
        let spec = &mut example.job["spec"];
        spec["trainer"]["steps"] = 40.into();
        if processes > 1 {
            spec["workers"]["procsPerWorker"] = processes.into();
            spec["trainer"]["parallel"] = json!({"shard": "Zero3"});
        }
        let mut run = example.start("own-model");
        assert!(run.end().unwrap().success(), "{}", run.output());
        run.weights().unwrap()
    });
    let apart = difference(&alone, &divided).unwrap();
    assert!(apart < 1e-6, "{apart:e}");
}

#[test]
fn misspelled_option_fails_the_job_with_its_key() {
    let mut example = Example::read(1);
    example.job["spec"]["trainer"]["options"] = json!({"unit": 8});
    let output = failure(example.start("own-model"));
    assert!(
        output.contains("trainer.options.unit: unknown field `unit`, expected"),
        "{output}"
    );
}

#[test]
fn built_in_trainer_refuses_a_custom_model() {
    let output = failure(Example::read(1).start("roundhouse-train"));
    assert!(
        output.contains("trainer.model.name: custom is for a program of your own"),
        "{output}"
    );
}
