//! Steps that the device commits: the host launches the next step before it waits for the current
//! step, and waits once per step.

#![cfg(feature = "faults")]
#![expect(clippy::unwrap_used, reason = "a test says what is wrong by panicking")]

use std::ops::Range;
use std::process::Command;
use std::sync::{Arc, Mutex};

use roundhouse_c10d::host_syncs;
use roundhouse_contract::trainer::Optimizer;
use roundhouse_member::Launch;
use roundhouse_member::faults::commits_on_device;
use roundhouse_member::signals::LeaveRequest;
use roundhouse_trainer::{
    Batch, Job, LossSum, Mode, Parameters, Permutation, Role, Source, SourceError, Task, Trainer,
    optimizers,
};
use tch::{Kind, TchError, Tensor};

const NUM_STEPS: u64 = 8;
const NUM_SAMPLES: u64 = 64;

/// Number of waits of the host before the forward pass of each step.
type Waits = Arc<Mutex<Vec<u64>>>;

#[derive(Debug)]
struct Line {
    parameters: Parameters,
    waits: Waits,
}

impl Task for Line {
    fn loss(&self, batch: &Batch, _: Mode) -> Result<LossSum, TchError> {
        self.waits.lock().unwrap().push(host_syncs());
        let difference = batch.inputs.f_matmul(self.parameters.at(0))? - &batch.targets;
        Ok(LossSum {
            loss: difference.f_square()?.f_sum(Kind::Float)?,
            counts: Vec::new(),
        })
    }

    fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    fn parameters_mut(&mut self) -> &mut Parameters {
        &mut self.parameters
    }
}

#[derive(Debug)]
struct Points;

impl Source for Points {
    fn num_samples(&self) -> u64 {
        NUM_SAMPLES
    }

    fn fetch(&mut self, places: Range<u64>, _: &Permutation) -> Result<Batch, SourceError> {
        let values: Vec<f32> = places.clone().map(|place| (place as f32).sin()).collect();
        let inputs = Tensor::f_from_slice(&values)?.f_unsqueeze(1)?;
        Ok(Batch {
            targets: inputs.f_mul_scalar(3.0)?,
            inputs: Tensor::f_cat(&[&inputs, &inputs.f_square()?], 1)?,
            num_samples: places.end - places.start,
        })
    }
}

/// Trains in this process. Returns the number of waits of the host before each step, and the total.
fn train(on_non_finite: &str) -> (Vec<u64>, u64) {
    let directory = tempfile::tempdir().unwrap();
    let config_file = directory.path().join("config");
    let config = format!(
        r#"{{
            "model": {{"name": "mlp", "hidden": [8]}},
            "data": {{"format": "idx"}},
            "optimizer": {{"name": "sgd", "learningRate": 0.01}},
            "globalBatchSize": 8, "microBatchSize": 8, "steps": {NUM_STEPS}, "seed": 7,
            "onNonFinite": "{on_non_finite}"
        }}"#
    );
    std::fs::write(&config_file, config).unwrap();
    let launch = Launch::alone(config_file, directory.path().to_owned(), None);
    let waits = Waits::default();
    let recorded = Arc::clone(&waits);
    let before = host_syncs();
    let mut reporter = launch.reporter().unwrap();
    let build = |_: &roundhouse_trainer::Setup<'_>| {
        let mut parameters = Parameters::default();
        let start = Tensor::from_slice(&[0.5_f32, -0.5]).unsqueeze(1);
        parameters.push("weight", Role::Weight, &start)?;
        Ok(Job {
            task: Box::new(Line { parameters, waits }),
            train: Box::new(Points),
            test: None,
            blocks: None,
            update: Box::new(|parameters| optimizers::build(&Optimizer::default(), parameters)),
        })
    };
    Trainer::prepare(launch, build, LeaveRequest::default(), &mut reporter)
        .unwrap()
        .run()
        .unwrap();
    let waits = recorded.lock().unwrap();
    let since = |count: u64| count - before;
    (
        waits.iter().copied().map(since).collect(),
        since(host_syncs()),
    )
}

#[test]
fn next_step_is_launched_before_the_host_waits() {
    if !commits_on_device() {
        // The switch and the counter are per process, so the test runs itself again with the switch
        // on.
        let status = Command::new(std::env::current_exe().unwrap())
            .env("ROUNDHOUSE_FAULT_COMMIT", "device")
            .status();
        assert!(status.unwrap().success());
        return;
    }
    // The host waits for the first step of a generation before it launches the second. Later it is
    // one step ahead.
    let ahead = (vec![0, 1, 1, 2, 3, 4, 5, 6], NUM_STEPS);
    assert_eq!(train("Fail"), ahead);
    // If a step may be skipped, the next step depends on its result.
    let each = ((0..NUM_STEPS).collect(), NUM_STEPS);
    assert_eq!(train("Skip"), each);
}
