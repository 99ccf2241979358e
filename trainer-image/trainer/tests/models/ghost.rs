//! Ghost batches: the gradients of a step do not depend on how the global batch is divided among
//! passes.

use std::ops::Range;

use roundhouse_contract::trainer::model::{Model as ModelConfig, ModelName, Stem};
use roundhouse_trainer::models::{Classifier, Depth, ResNet};
use roundhouse_trainer::random::seeded;
use roundhouse_trainer::{Batch, Mode, Parameters, Task};
use tch::{Kind, Tensor};

use crate::formula;
use crate::parity::images;

/// Largest difference, relative to the largest value, in double precision. In single precision
/// rounding grows through the layers and would hide small defects.
pub(crate) const TOLERANCE: f64 = 1e-9;
const SHAPE: [i64; 4] = [8, 3, 16, 16];

fn model(ghost_batch: u32) -> Classifier {
    resnet(|config| config.ghost_batch = Some(ghost_batch))
}

/// A residual network in double precision.
pub(crate) fn resnet(change: impl FnOnce(&mut ModelConfig)) -> Classifier {
    let mut config = ModelConfig::new(ModelName::Resnet18);
    config.stem = Some(Stem::Cifar);
    change(&mut config);
    let build = |parameters: &mut Parameters| {
        ResNet::new(parameters, Depth::Layers18, &config, &images(&SHAPE))
    };
    let mut model = seeded(0, || Classifier::new(0.1, build)).unwrap();
    formula::fill(model.parameters_mut());
    for tensor in model.parameters_mut().tensors_mut() {
        *tensor = tensor
            .detach()
            .to_kind(Kind::Double)
            .set_requires_grad(true);
    }
    model
}

fn batch(places: Range<i64>) -> Batch {
    let length = places.end - places.start;
    Batch {
        inputs: formula::values("inputs", &SHAPE, 2.0, 0.0)
            .to_kind(Kind::Double)
            .narrow(0, places.start, length),
        targets: formula::tokens("targets", &SHAPE[..1], 10).narrow(0, places.start, length),
        num_samples: length.unsigned_abs(),
    }
}

/// All gradients of a step whose passes are cut at `cuts`, including those of running statistics.
pub(crate) fn gradients(model: &Classifier, cuts: &[i64]) -> Vec<Tensor> {
    for pair in cuts.windows(2) {
        let mode = Mode::Train {
            seed: 1,
            step: 1,
            slice: 0,
        };
        let sum = model.loss(&batch(pair[0]..pair[1]), mode).unwrap();
        (sum.loss / SHAPE[0] as f64).backward();
    }
    let mut gradients = Vec::new();
    for tensor in model.parameters().tensors() {
        gradients.push(tensor.grad().copy());
        let _ = tensor.grad().zero_();
    }
    gradients
}

/// Largest difference of a tensor's values, relative to its largest value.
pub(crate) fn difference(ours: &[Tensor], theirs: &[Tensor]) -> f64 {
    let one = |(a, b): (&Tensor, &Tensor)| {
        let largest = b.abs().max().double_value(&[]);
        (a - b).abs().max().double_value(&[]) / largest
    };
    ours.iter().zip(theirs).map(one).fold(0.0, f64::max)
}

#[test]
fn ghost_gradients_do_not_depend_on_the_passes() {
    let model = model(2);
    let whole = gradients(&model, &[0, 8]);
    for cuts in [&[0, 4, 8][..], &[0, 2, 4, 6, 8], &[0, 2, 8], &[0, 0, 6, 8]] {
        let divided = gradients(&model, cuts);
        let difference = difference(&divided, &whole);
        assert!(difference < TOLERANCE, "{cuts:?}: {difference}");
    }
}

#[test]
fn result_without_groups_depends_on_the_passes() {
    let model = model(0);
    let whole = gradients(&model, &[0, 8]);
    assert!(difference(&gradients(&model, &[0, 4, 8]), &whole) > 1e-2);
}

#[test]
fn last_group_of_the_global_batch_may_be_smaller() {
    let model = model(3);
    let whole = gradients(&model, &[0, 8]);
    let divided = gradients(&model, &[0, 6, 8]);
    assert!(difference(&divided, &whole) < TOLERANCE);
}

#[test]
fn statistic_is_the_sample_weighted_mean_of_the_groups() {
    let model = model(3);
    let gradients = gradients(&model, &[0, 8]);
    let place = |end: &str| {
        let names = model.parameters().iter().map(|(name, _)| name);
        names.into_iter().position(|name| name == end).unwrap()
    };
    // The input of the first normalization is the first convolution of the images.
    let x = batch(0..8).inputs.conv2d(
        model.parameters().at(0),
        None::<Tensor>,
        [1, 1],
        [1, 1],
        [1, 1],
        1,
    );
    let zeros = || Tensor::zeros([64], tch::kind::DOUBLE_CPU);
    let (mut mean, mut var) = (zeros(), zeros());
    for (start, length) in [(0, 3), (3, 3), (6, 2)] {
        let part = x.narrow(0, start, length);
        let dims: &[i64] = &[0, 2, 3];
        mean += part.mean_dim(dims, false, Kind::Double) * (length as f64 / 8.0);
        var += part.var_dim(dims, true, false) * (length as f64 / 8.0);
    }
    let by_hand = [mean.detach(), var.detach()];
    let statistics =
        ["bn1.running_mean", "bn1.running_var"].map(|name| gradients[place(name)].copy());
    assert!(difference(&statistics, &by_hand) < TOLERANCE);
}

#[test]
fn evaluation_uses_running_values_without_gradients() {
    let model = model(2);
    let scores = |places| model.scores(&batch(places).inputs, Mode::Evaluate).unwrap();
    let apart = Tensor::cat(&[scores(0..3), scores(3..8)], 0);
    assert!(difference(&[apart], &[scores(0..8)]) < TOLERANCE);
    let sum = model.loss(&batch(0..8), Mode::Evaluate).unwrap();
    sum.loss.backward();
    let names: Vec<&str> = sum.counts.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["top1", "top5"]);
    for (name, tensor) in model.parameters().iter() {
        assert_eq!(tensor.grad().defined(), !name.contains("running"), "{name}");
    }
}
