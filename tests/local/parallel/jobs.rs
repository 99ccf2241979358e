//! Jobs of language models whose processes divide layers.

use roundhouse_tests::local::{LocalRun, Program};
use roundhouse_tests::weights::difference_of;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{completed, in_shards, in_slices, of_language_model};

/// A vocabulary of an odd size: processes have different numbers of tokens.
pub(super) fn models() -> [Value; 3] {
    let with = |fields: Value| {
        let mut model = json!({"layers": 3, "heads": 6, "width": 36, "vocabulary": 65});
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
pub(super) struct Jobs {
    _directory: TempDir,
    program: Program,
    pub(super) steps: u64,
    model: Value,
    parallel: Value,
}

impl Jobs {
    /// `parallel`: how the processes of a worker divide the model.
    pub(super) fn new(steps: u64, model: Value, parallel: Value) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let program = Program::on_tokens(directory.path()).unwrap();
        Self {
            _directory: directory,
            program,
            steps,
            model,
            parallel,
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

    /// One process. Without clipping the updates of SGD are in proportion to gradients, so a wrong
    /// factor changes the weights.
    pub(super) fn alone(&self, clips: bool) -> LocalRun {
        completed(self.start(in_slices(1, self.steps, "sgd", clips), false, "None"))
    }

    pub(super) fn divided(
        &self,
        replicas: u32,
        in_slices: bool,
        activations: &str,
        clips: bool,
    ) -> LocalRun {
        let mut job = in_shards(replicas, self.steps, "sgd", "");
        if clips {
            job["spec"]["trainer"]["optimizer"]["maxGradNorm"] = json!(1.0);
        }
        job["spec"]["trainer"]["parallel"] = self.parallel.clone();
        self.start(job, in_slices, activations)
    }
}

/// Each model trains what one process does if the processes of a worker divide it in this way:
/// without slices and clipping, then with both.
pub(super) fn assert_models_train_as_one_process(parallel: &Value) {
    for model in models() {
        let jobs = Jobs::new(12, model, parallel.clone());
        for (replicas, activations, all) in [(1, "Blocks", false), (2, "None", true)] {
            let run = completed(jobs.divided(replicas, all, activations, all));
            let what = format!(
                "{}, {replicas} replicas, slices and clipping: {all}",
                jobs.model
            );
            assert_close(&jobs.alone(all), &run, &what);
        }
    }
}

/// Sums may have other orders than in one process.
pub(super) fn assert_close(one: &LocalRun, other: &LocalRun, what: &str) {
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
