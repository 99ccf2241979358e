//! `deterministic: true` refuses an operation that has no deterministic kernel. The switch affects
//! the whole process, so this test is a separate program.

#![expect(clippy::unwrap_used, reason = "a test says what is wrong by panicking")]

use std::ops::Range;

use roundhouse_contract::trainer::Optimizer;
use roundhouse_member::Launch;
use roundhouse_member::signals::LeaveRequest;
use roundhouse_trainer::{
    Batch, Failure, Job, LossSum, Mode, Parameters, Permutation, Role, Setup, Source, SourceError,
    Task, Trainer, optimizers,
};
use tch::{Device, Kind, TchError, Tensor};

/// A task with one weight. Its loss writes two values to one place; which of them stays is
/// undefined.
#[derive(Debug)]
struct Put(Parameters);

impl Task for Put {
    fn loss(&self, batch: &Batch, _: Mode) -> Result<LossSum, TchError> {
        let weight = self.0.at(0);
        let mut place = weight.f_detach()?.f_zeros_like()?;
        let both = Tensor::f_from_slice(&[0_i64, 0])?;
        let _ = place.f_put_(&both, &Tensor::f_from_slice(&[1_f32, 1.0])?, false)?;
        let loss = weight
            .f_mul(&place)?
            .f_mul(&batch.inputs)?
            .f_sum(Kind::Float)?;
        Ok(LossSum {
            loss,
            counts: Vec::new(),
        })
    }

    fn parameters(&self) -> &Parameters {
        &self.0
    }

    fn parameters_mut(&mut self) -> &mut Parameters {
        &mut self.0
    }
}

#[derive(Debug)]
struct Ones;

impl Source for Ones {
    fn num_samples(&self) -> u64 {
        8
    }

    fn fetch(&mut self, places: Range<u64>, _: &Permutation) -> Result<Batch, SourceError> {
        let num_samples = places.end - places.start;
        let ones = Tensor::f_ones([num_samples.cast_signed()], (Kind::Float, Device::Cpu))?;
        Ok(Batch {
            targets: ones.shallow_clone(),
            inputs: ones,
            num_samples,
        })
    }
}

fn train(is_deterministic: bool) -> Result<(), Failure> {
    let directory = tempfile::tempdir().unwrap();
    let config_file = directory.path().join("config");
    let config = format!(
        r#"{{
            "model": {{"name": "mlp"}}, "data": {{"format": "idx"}},
            "globalBatchSize": 4, "steps": 2, "deterministic": {is_deterministic}
        }}"#
    );
    std::fs::write(&config_file, config).unwrap();
    let launch = Launch::alone(config_file, directory.path().to_owned(), None);
    let mut reporter = launch.reporter().unwrap();
    let build = |_: &Setup<'_>| {
        let mut parameters = Parameters::default();
        parameters.push("weight", Role::Weight, &Tensor::from_slice(&[0.5_f32]))?;
        Ok(Job {
            task: Box::new(Put(parameters)),
            train: Box::new(Ones),
            test: None,
            blocks: None,
            update: Box::new(|parameters| optimizers::build(&Optimizer::default(), parameters)),
        })
    };
    Trainer::prepare(launch, build, LeaveRequest::default(), &mut reporter)?.run()?;
    Ok(())
}

#[test]
fn nondeterministic_operation_is_a_permanent_error() {
    train(false).unwrap();
    let failure = train(true).unwrap_err();
    let words = failure.to_string();
    assert!(words.contains("deterministic implementation"), "{words}");
    // A retry would end the same way.
    assert!(failure.exit_code().is_permanent(), "{words}");
    train(false).unwrap();
}
