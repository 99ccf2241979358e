use std::ops::Range;

use roundhouse_contract::trainer::Precision;
use tch::{Device, Kind, TchError, Tensor};

use super::*;
use crate::batch::Batch;
use crate::group::C10dGroup;
use crate::loss;
use crate::parameters::Parameters;
use crate::source::SourceError;
use crate::task::LossSum;

/// Scores two inputs as two classes.
#[derive(Debug, Default)]
struct Identity(Parameters);

impl Task for Identity {
    fn loss(&self, batch: &Batch, _: Mode) -> Result<LossSum, TchError> {
        Ok(LossSum {
            loss: loss::of_classes(&batch.inputs, &batch.targets, 0.0)?,
            counts: loss::count_classes(&batch.inputs, &batch.targets)?,
        })
    }
    fn parameters(&self) -> &Parameters {
        &self.0
    }
    fn parameters_mut(&mut self) -> &mut Parameters {
        &mut self.0
    }
}

/// Three samples, of which two are classified correctly.
#[derive(Debug)]
struct Three;

impl Source for Three {
    fn num_samples(&self) -> u64 {
        3
    }
    fn fetch(&mut self, places: Range<u64>, order: &Permutation) -> Result<Batch, SourceError> {
        let samples = places.filter_map(|place| order.at(place));
        let samples: Vec<i64> = samples.map(u64::cast_signed).collect();
        let index = Tensor::from_slice(&samples);
        let inputs = Tensor::from_slice(&[1.0_f32, 0.0, 0.0, 1.0, 1.0, 0.0]).reshape([3, 2]);
        Ok(Batch {
            inputs: inputs.f_index_select(0, &index)?,
            targets: Tensor::from_slice(&[0_i64, 1, 1]).f_index_select(0, &index)?,
            num_samples: samples.len() as u64,
        })
    }
}

fn alone() -> World<C10dGroup> {
    World::alone()
}

/// An evaluation whose rank decides alone whether it stops.
fn evaluated<G: Group>(
    task: &dyn Task,
    source: &mut dyn Source,
    world: &World<G>,
    piece_size: u32,
    precision: Precision,
    is_over: impl Fn() -> bool,
) -> Result<Option<Evaluation>, Failure> {
    let passes = Passes {
        piece_size,
        precision,
        is_over: &is_over,
        stops: &mut Ok,
    };
    evaluate(task, source, world, passes)
}

#[test]
fn accuracy_and_loss_are_those_computed_by_hand() {
    for bound in [3, 1, 2] {
        let found = evaluated(
            &Identity::default(),
            &mut Three,
            &alone(),
            bound,
            Precision::Fp32,
            || false,
        );
        let found = found.unwrap().unwrap();
        assert!((found.accuracy.unwrap() - 2.0 / 3.0).abs() < 1e-9);
        assert_eq!((found.top5, found.perplexity), (Some(1.0), None));
        let right = (1.0 + (-1.0_f64).exp()).ln();
        let expected = (2.0 * right + right + 1.0) / 3.0;
        assert!((found.loss - expected).abs() < 1e-6, "{found:?}");
    }
}

#[test]
fn stopped_evaluation_has_no_result() {
    let num_batches = std::cell::Cell::new(0);
    let is_over = || num_batches.replace(num_batches.get() + 1) == 2;
    let found = evaluated(
        &Identity::default(),
        &mut Three,
        &alone(),
        1,
        Precision::Fp32,
        is_over,
    );
    assert_eq!((found.unwrap(), num_batches.get()), (None, 3));
}

/// Each token has the probability 1/4, unless the factor makes the scores not finite.
#[derive(Debug)]
struct Uniform(Parameters, f64);

impl Default for Uniform {
    fn default() -> Self {
        Self(Parameters::default(), 1.0)
    }
}

impl Task for Uniform {
    fn loss(&self, batch: &Batch, _: Mode) -> Result<LossSum, TchError> {
        let targets_bt = batch.targets.f_unsqueeze(1)?;
        let ones_nv = Tensor::ones([targets_bt.size()[0], 4], (Kind::Float, Device::Cpu));
        let scores_nv = ones_nv * self.1;
        Ok(LossSum {
            loss: loss::of_sequences(&scores_nv, &targets_bt, 0.0)?,
            counts: loss::count_tokens(&scores_nv, &targets_bt)?,
        })
    }
    fn parameters(&self) -> &Parameters {
        &self.0
    }
    fn parameters_mut(&mut self) -> &mut Parameters {
        &mut self.0
    }
}

#[test]
fn perplexity_of_a_uniform_guess_is_the_vocabulary_size() {
    let found = evaluated(
        &Uniform::default(),
        &mut Three,
        &alone(),
        2,
        Precision::Fp32,
        || false,
    );
    let found = found.unwrap().unwrap();
    assert!((found.perplexity.unwrap() - 4.0).abs() < 1e-6, "{found:?}");
    assert_eq!((found.accuracy, found.top5), (None, None));
}

#[test]
fn scores_that_are_not_finite_give_no_perplexity() {
    let task = Uniform(Parameters::default(), f64::NAN);
    let found = evaluated(&task, &mut Three, &alone(), 2, Precision::Fp32, || false);
    let found = found.unwrap().unwrap();
    assert!(found.perplexity.unwrap().is_nan(), "{found:?}");
    assert!(found.loss.is_nan(), "{found:?}");
}

/// Computes scores by a matrix product, which autocast runs in 16 bits, and records their type.
#[derive(Debug, Default)]
struct Product(Parameters, std::cell::Cell<Option<Kind>>);

impl Task for Product {
    fn loss(&self, batch: &Batch, _: Mode) -> Result<LossSum, TchError> {
        let scores_nc = batch
            .inputs
            .f_matmul(&Tensor::eye(2, (Kind::Float, Device::Cpu)))?;
        self.1.set(Some(scores_nc.kind()));
        Ok(LossSum {
            loss: loss::of_classes(&scores_nc, &batch.targets, 0.0)?,
            counts: loss::count_classes(&scores_nc, &batch.targets)?,
        })
    }
    fn parameters(&self) -> &Parameters {
        &self.0
    }
    fn parameters_mut(&mut self) -> &mut Parameters {
        &mut self.0
    }
}

#[test]
fn evaluation_uses_the_precision_of_training() {
    for (precision, kind) in [
        (Precision::Fp32, Kind::Float),
        (Precision::Bf16, Kind::BFloat16),
    ] {
        let task = Product::default();
        let found = evaluated(&task, &mut Three, &alone(), 3, precision, || false);
        assert_eq!(task.1.get(), Some(kind), "{precision:?}");
        assert_eq!(found.unwrap().unwrap().top5, Some(1.0));
    }
}

/// Three samples, and the places that the source was asked to read ahead.
#[derive(Debug, Default)]
struct Expected(Vec<Range<u64>>);

impl Source for Expected {
    fn num_samples(&self) -> u64 {
        3
    }
    fn expect(&mut self, coming: &[(Range<u64>, Permutation)]) {
        self.0
            .extend(coming.iter().map(|(places, _)| places.clone()));
    }
    fn fetch(&mut self, places: Range<u64>, order: &Permutation) -> Result<Batch, SourceError> {
        assert!(self.0.contains(&places), "{places:?} of {:?}", self.0);
        Three.fetch(places, order)
    }
}

#[test]
fn evaluation_announces_its_batches_to_the_source() {
    let mut source = Expected::default();
    let task = Identity::default();
    let found = evaluated(&task, &mut source, &alone(), 2, Precision::Fp32, || false);
    assert!(found.unwrap().is_some());
    assert_eq!(
        source
            .0
            .iter()
            .map(|places| places.end - places.start)
            .sum::<u64>(),
        3
    );
}
