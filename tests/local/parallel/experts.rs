//! Experts of which each process of a worker has some.

use roundhouse_tests::local::{LocalRun, Program};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    PROCESSES, REPLICAS, assert_equal_bits, change_mesh, completed, completed_without_repeats,
    in_shards, in_slices, kill_all_ranks, of_language_model,
};

/// Six experts in the second of three blocks.
fn model() -> Value {
    json!({"name": "switch", "layers": 3, "heads": 2, "width": 32, "vocabulary": 64, "context": 16,
        "numExperts": 6, "capacityFactor": 1.0, "dropout": 0.1})
}

/// The jobs of a test, and their data.
struct Jobs {
    _directory: TempDir,
    program: Program,
    steps: u64,
    activations: &'static str,
}

impl Jobs {
    fn new(steps: u64, activations: &'static str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let program = Program::on_tokens(directory.path()).unwrap();
        Self {
            _directory: directory,
            program,
            steps,
            activations,
        }
    }

    fn start(&self, job: Value) -> LocalRun {
        let job = of_language_model(job, &model(), self.activations);
        LocalRun::start_program(self.program.clone(), &job, &[]).unwrap()
    }

    fn alone(&self) -> LocalRun {
        completed(self.start(in_slices(1, self.steps, "adamw", false)))
    }

    fn spread(&self, replicas: u32, shard: &str) -> LocalRun {
        let mut job = in_shards(replicas, self.steps, "adamw", shard);
        job["spec"]["trainer"]["parallel"]["expert"] = PROCESSES.into();
        self.start(job)
    }
}

#[test]
fn spread_experts_train_what_one_process_does() {
    for (activations, replicas, shard) in [("None", 1, "Zero3"), ("Blocks", 2, "Zero2")] {
        let jobs = Jobs::new(12, activations);
        let run = completed(jobs.spread(replicas, shard));
        let what = format!("{replicas} with {shard}, activations {activations}");
        assert_equal_bits(&jobs.alone(), &run, &what);
        let audit = run.audit().unwrap();
        assert!(audit.contains("proven"), "{audit}");
    }
}

#[test]
fn killed_process_with_experts_costs_no_step_and_no_bit() {
    let jobs = Jobs::new(300, "None");
    let mut run = jobs.spread(REPLICAS, "Zero3");
    kill_all_ranks(&mut run, &["Backward"], jobs.steps);
    let run = completed_without_repeats(run);
    assert_equal_bits(&jobs.alone(), &run, "after kills");
}

#[test]
fn checkpoint_of_experts_continues_with_any_number() {
    let jobs = Jobs::new(60, "None");
    let mut run = jobs.spread(2, "Zero3");
    let changes = [
        (5, 3, json!({"shard": "Zero2", "expert": 3})),
        (15, 1, json!({})),
        (25, 2, json!({"shard": "Zero2", "expert": 2})),
        (35, 2, json!({"shard": "Zero3"})),
    ];
    change_mesh(&mut run, &changes);
    let run = completed_without_repeats(run);
    assert_equal_bits(&jobs.alone(), &run, "after changes of the mesh");
}
