//! Values that an update must not change: everything if it is skipped, and statistics except by
//! averaging.

use roundhouse_contract::trainer::optimizer::Ema;
use roundhouse_contract::trainer::{Optimizer, OptimizerName};
use roundhouse_trainer::{Parameters, Rate, Role, Signals, Update, clip, optimizers};
use tch::{Kind, Tensor};

use super::model::{Model, copies};

/// Each optimizer, with all its options on.
fn all() -> impl Iterator<Item = Optimizer> {
    OptimizerName::ALL.into_iter().map(|name| Optimizer {
        name,
        nesterov: name == OptimizerName::Sgd,
        weight_decay: 0.1,
        ema: Some(Ema { decay: 0.9 }),
        ..Optimizer::default()
    })
}

fn rate(step: u64) -> Rate {
    Rate {
        learning_rate: 0.05,
        step,
    }
}

/// All tensors that training changes.
fn everything(parameters: &Parameters, update: &dyn Update) -> Vec<Tensor> {
    let mut tensors = copies(parameters.tensors());
    for (_, state) in update.state() {
        tensors.extend(copies(state));
    }
    tensors
}

fn are_equal(left: &[Tensor], right: &[Tensor]) -> bool {
    left.len() == right.len()
        && left
            .iter()
            .zip(right)
            .all(|(left, right)| left.equal(right))
}

#[test]
fn skipped_update_with_non_finite_gradients_changes_nothing() {
    for config in all() {
        for (factor, of_batch) in [(f64::NAN, f64::NAN), (f64::INFINITY, 0.5), (1.0, 0.5)] {
            let mut model = Model::with_statistic(0.1);
            let mut update = optimizers::build(&config, &model.parameters).unwrap();
            model.backward(1, 1.0, 0.5);
            let signals = Signals::default();
            update
                .apply(&mut model.parameters, rate(1), signals)
                .unwrap();
            let before = everything(&model.parameters, update.as_ref());
            model.backward(2, factor, of_batch);
            let norm = clip::gradient_norm(&model.parameters).unwrap();
            // The vote on a device has a flag with one dimension.
            for skip in [Tensor::from(1.0_f32), Tensor::from_slice(&[3.0_f32])] {
                let divisor = clip::divisor(&norm, 1.0).unwrap();
                let signals = Signals {
                    skip: Some(&skip),
                    divisor: Some(&divisor),
                };
                update
                    .apply(&mut model.parameters, rate(2), signals)
                    .unwrap();
                let after = everything(&model.parameters, update.as_ref());
                assert!(are_equal(&before, &after), "{:?} {factor}", config.name);
            }
        }
    }
}

#[test]
fn update_with_flag_0_equals_update_without_flag() {
    for config in all() {
        let [without, with] = [None, Some(Tensor::from(0.0_f32))].map(|skip| {
            let mut model = Model::with_statistic(0.1);
            let mut update = optimizers::build(&config, &model.parameters).unwrap();
            for step in 1..=5 {
                model.backward(step, 1.0, 0.5);
                let signals = Signals {
                    skip: skip.as_ref(),
                    divisor: None,
                };
                update
                    .apply(&mut model.parameters, rate(step), signals)
                    .unwrap();
            }
            everything(&model.parameters, update.as_ref())
        });
        assert!(are_equal(&without, &with), "{:?}", config.name);
    }
}

#[test]
fn statistic_only_gets_its_running_average() {
    for config in all() {
        let mut model = Model::with_statistic(0.25);
        let mut update = optimizers::build(&config, &model.parameters).unwrap();
        let halved = Tensor::from(2.0_f32);
        for step in 1..=2 {
            model.backward(step, 1.0, 5.0);
            let signals = Signals {
                skip: None,
                divisor: Some(&halved),
            };
            update
                .apply(&mut model.parameters, rate(step), signals)
                .unwrap();
        }
        let (_, found) = model.parameters.iter().last().unwrap();
        // Twice a quarter of the way to 5: (1 - 0.25)² of the distance is left.
        let expected = Tensor::from_slice(&[1.0_f32, 2.0, 3.0]);
        let expected: Tensor = (expected - 5.0) * 0.5625 + 5.0;
        let difference = (found - expected).abs().max().double_value(&[]);
        assert!(difference < 1e-6, "{:?}: {difference}", config.name);
    }
}

#[test]
fn norm_is_that_of_all_weight_gradients() {
    let mut parameters = Parameters::default();
    let two = Tensor::from_slice(&[0.0_f32, 0.0]);
    parameters.push("fc.weight", Role::Weight, &two).unwrap();
    parameters.push("fc.bias", Role::Weight, &two).unwrap();
    let statistic = Role::Statistic { momentum: 0.1 };
    parameters.push("mean", statistic, &two).unwrap();
    let [weight, bias, mean] = parameters.tensors() else {
        panic!("three tensors");
    };
    let of = |tensor: &Tensor, factor: f64| (tensor * factor).sum(Kind::Float);
    (of(weight, 3.0) + of(bias, 4.0) + of(mean, 1e6)).backward();
    let norm = clip::gradient_norm(&parameters).unwrap();
    let expected = (2.0 * 9.0 + 2.0 * 16.0_f64).sqrt();
    assert!((norm.double_value(&[]) - expected).abs() < 1e-6);
    // A norm within the limit does not divide.
    let divisor = |limit| clip::divisor(&norm, limit).unwrap().double_value(&[]);
    assert!((divisor(100.0) - 1.0).abs() < 1e-12);
    assert!((divisor(1.0) - expected).abs() < 1e-5);
}

#[test]
fn parameter_without_a_gradient_is_named() {
    for config in all() {
        let mut model = Model::new();
        let mut update = optimizers::build(&config, &model.parameters).unwrap();
        let signals = Signals::default();
        let error = update.apply(&mut model.parameters, rate(1), signals);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("conv.weight has no gradient"), "{error}");
    }
}

#[test]
fn tensor_of_zeros_moves_with_a_rate_per_tensor() {
    for name in [OptimizerName::Lars, OptimizerName::Lamb] {
        let config = Optimizer {
            name,
            ..Optimizer::default()
        };
        let mut parameters = Parameters::default();
        let zeros = Tensor::zeros([2, 2], (Kind::Float, tch::Device::Cpu));
        parameters.push("fc.weight", Role::Weight, &zeros).unwrap();
        let mut update = optimizers::build(&config, &parameters).unwrap();
        parameters.tensors()[0].sum(Kind::Float).backward();
        let signals = Signals::default();
        update.apply(&mut parameters, rate(1), signals).unwrap();
        let moved = parameters.tensors()[0].double_value(&[0, 0]);
        assert!((moved + 0.05).abs() < 1e-6, "{name:?}: {moved}");
    }
}

#[test]
fn state_has_a_tensor_per_parameter_and_name() {
    for config in all() {
        let model = Model::with_statistic(0.1);
        let update = optimizers::build(&config, &model.parameters).unwrap();
        let state = update.state();
        let names: Vec<_> = state.iter().map(|(name, _)| *name).collect();
        let expected: &[&str] = match config.name {
            OptimizerName::Sgd | OptimizerName::Lars => &["momentum", "ema"],
            OptimizerName::Adamw | OptimizerName::Lamb => &["first_moment", "second_moment", "ema"],
        };
        assert_eq!(names, expected);
        for (_, tensors) in state {
            let sizes = |tensors: &[Tensor]| tensors.iter().map(Tensor::size).collect::<Vec<_>>();
            assert_eq!(sizes(tensors), sizes(model.parameters.tensors()));
        }
    }
}
