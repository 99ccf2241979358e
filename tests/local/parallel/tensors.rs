//! Processes of a worker that compute the same samples, each with a part of the weights.

use roundhouse_tests::local::{LocalRun, Program};
use roundhouse_tests::weights::difference_of;
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    PAUSE_MILLIS, PROCESSES, REPLICAS, all_train, assert_equal_bits, completed, in_shards,
    in_slices, of_language_model,
};

/// A vocabulary of an odd size: processes have different numbers of tokens.
fn models() -> [Value; 3] {
    let with = |fields: Value| {
        let mut model = json!({"layers": 2, "heads": 6, "width": 36, "vocabulary": 65});
        let fields = fields.as_object().unwrap().clone();
        model.as_object_mut().unwrap().extend(fields);
        model
    };
    [
        with(json!({"name": "gpt2", "context": 16, "labelSmoothing": 0.1})),
        with(json!({"name": "llama", "numKeyValueHeads": 6, "tieEmbeddings": false})),
        with(json!({"name": "bert", "context": 16, "labelSmoothing": 0.1})),
    ]
}

/// The jobs of a test, and their data.
struct Jobs {
    _directory: TempDir,
    program: Program,
    steps: u64,
    model: Value,
}

impl Jobs {
    fn new(steps: u64, model: Value) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let program = Program::on_tokens(directory.path()).unwrap();
        Self {
            _directory: directory,
            program,
            steps,
            model,
        }
    }

    fn start(&self, mut job: Value, in_slices: bool, activations: &str) -> LocalRun {
        job = of_language_model(job, &self.model, activations);
        if !in_slices {
            job["spec"]["trainer"]
                .as_object_mut()
                .unwrap()
                .remove("slices");
        }
        LocalRun::start_program(self.program.clone(), &job, &[]).unwrap()
    }

    /// One process. Its optimizer is SGD, whose updates are in proportion to gradients: a factor
    /// that is wrong changes the weights.
    fn alone(&self) -> LocalRun {
        completed(self.start(in_slices(1, self.steps, "sgd", true), false, "None"))
    }

    fn divided(&self, replicas: u32, in_slices: bool, activations: &str) -> LocalRun {
        let mut job = in_shards(replicas, self.steps, "sgd", "");
        job["spec"]["trainer"]["optimizer"]["maxGradNorm"] = json!(1.0);
        job["spec"]["trainer"]["parallel"] = json!({"tensor": PROCESSES});
        self.start(job, in_slices, activations)
    }
}

/// Sums have other orders than in one process.
fn assert_close(one: &LocalRun, other: &LocalRun, what: &str) {
    // The bias of keys changes no attention, so its gradient is nothing but rounding.
    let counts = |name: &str| !name.ends_with("key.bias");
    let [a, b] = [one, other].map(|run| run.weights().unwrap());
    let apart = difference_of(&a, &b, counts).unwrap();
    println!("{what}: weights differ by {apart:e}");
    assert!(apart < 1e-5, "{what}: weights differ by {apart:e}");
    let audit = other.audit().unwrap();
    assert!(
        audit.contains("proven") && !audit.contains("again"),
        "{audit}"
    );
    let [one, other] = [one, other].map(loss_of_evaluation);
    assert!((one - other).abs() < 1e-3, "{what}: {one} and {other}");
}

/// The loss of the last evaluation.
fn loss_of_evaluation(run: &LocalRun) -> f64 {
    let output = run.output();
    let (_, rest) = output.rsplit_once("test loss ").unwrap();
    rest.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn divided_tensors_train_what_one_process_does() {
    for model in models() {
        let jobs = Jobs::new(12, model);
        let alone = jobs.alone();
        for (replicas, in_slices, activations) in [(1, false, "Blocks"), (2, true, "None")] {
            let run = completed(jobs.divided(replicas, in_slices, activations));
            let what = format!("{}, {replicas} replicas, slices: {in_slices}", jobs.model);
            assert_close(&alone, &run, &what);
        }
    }
}

/// With slices the weights are equal bit for bit for every number of replicas and every history.
#[test]
fn killed_process_with_divided_tensors_costs_no_bit() {
    let [model, ..] = models();
    let jobs = Jobs::new(500, model);
    let undisturbed = completed(jobs.divided(1, true, "None"));
    let mut run = jobs.divided(REPLICAS, true, "None");
    run.slow_down(PAUSE_MILLIS).unwrap();
    let mut generation = all_train(&mut run, 0);
    for point in ["Backward", "Column"] {
        for rank in 0..REPLICAS * PROCESSES {
            let step = run.step();
            run.wait_for("a step", |run| run.step() > step).unwrap();
            run.kill_at(rank, point).unwrap();
            run.wait_for("the kill", LocalRun::has_killed).unwrap();
            generation = all_train(&mut run, generation);
        }
    }
    assert!(
        run.step() < jobs.steps,
        "all faults must find the job training"
    );
    run.slow_down(0).unwrap();
    let run = completed(run);
    let audit = run.audit().unwrap();
    assert!(!audit.contains("again"), "{audit}\n{}", run.output());
    assert_equal_bits(&undisturbed, &run, "after kills");
}

#[test]
fn checkpoint_of_divided_tensors_continues_with_any_number() {
    let [_, model, _] = models();
    let jobs = Jobs::new(60, model);
    let mut run = jobs.divided(2, true, "None");
    run.slow_down(PAUSE_MILLIS).unwrap();
    for (step, processes, parallel) in [
        (5, 3, json!({"tensor": 3})),
        (15, 1, json!({})),
        (25, 2, json!({"tensor": 2})),
        (35, 2, json!({"shard": "Zero3"})),
    ] {
        run.wait_for("steps", |run| run.step() > step).unwrap();
        run.signal(Signal::INT).unwrap();
        assert_eq!(run.end().unwrap().code(), Some(130), "{}", run.output());
        run.edit(|spec| {
            spec["workers"]["procsPerWorker"] = processes.into();
            spec["trainer"]["parallel"] = parallel;
        })
        .unwrap();
        run.restart(&[]).unwrap();
    }
    run.slow_down(0).unwrap();
    assert_close(&jobs.alone(), &completed(run), "after changes of the mesh");
}
