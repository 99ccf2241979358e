//! Training in 16-bit floats has the same numbers as `torch.autocast`, and with a scaled loss the
//! same as `torch.amp.GradScaler`.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test says what is wrong by panicking"
)]

use std::path::Path;

use roundhouse_c10d::Autocast;
use roundhouse_contract::trainer::{LossScaling, Optimizer};
use roundhouse_elastic::LossScale;
use roundhouse_trainer::clip::{self, Measured};
use roundhouse_trainer::{Parameters, Rate, Role, Signals, optimizers};
use tch::{Device, Kind, Reduction, Tensor};

/// Same settings as in `fixtures/loss_scale.py`.
const SETTINGS: LossScaling = LossScaling {
    initial: 16_777_216.0,
    growth_interval: 5,
};
const MAX_NORM: f64 = 0.5;
const NAMES: [&str; 4] = ["0.weight", "0.bias", "1.weight", "1.bias"];

struct Fixture(Vec<(String, Tensor)>);

impl Fixture {
    fn read(name: &str) -> Self {
        let file = format!("fixtures/{name}.safetensors");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        Self(Tensor::read_safetensors(path).unwrap())
    }

    /// The weights before the first step.
    fn initial(&self) -> Parameters {
        let mut parameters = Parameters::default();
        for name in NAMES {
            let initial = self.get(&format!("{name}.initial"));
            parameters.push(name, Role::Weight, initial).unwrap();
        }
        parameters
    }

    fn get(&self, name: &str) -> &Tensor {
        let found = self.0.iter().find(|(own, _)| own == name);
        &found.unwrap_or_else(|| panic!("no tensor {name}")).1
    }

    fn numbers(&self, name: &str) -> Vec<f64> {
        Vec::try_from(self.get(name)).unwrap()
    }
}

fn loss(parameters: &Parameters, fixture: &Fixture, kind: Kind) -> Tensor {
    let at = |place| parameters.at(place);
    let _autocast = Autocast::enter(Device::Cpu, kind).unwrap();
    let hidden = fixture.get("inputs").linear(at(0), Some(at(1))).relu();
    let scores = hidden.linear(at(2), Some(at(3)));
    let labels = fixture.get("labels");
    scores.cross_entropy_loss::<Tensor>(labels, None, Reduction::Mean, -100, 0.0)
}

fn close(found: f64, expected: f64, tolerance: f64) -> bool {
    (found - expected).abs() <= tolerance * expected.abs()
}

#[test]
fn fp16_training_equals_pytorch() {
    let fixture = Fixture::read("fp16");
    let mut parameters = fixture.initial();
    let config = optimizer();
    let mut update = optimizers::build(&config, &parameters).unwrap();
    let mut scale = LossScale::start(&SETTINGS);
    let [losses, norms, scales] = ["losses", "norms", "scales"].map(|name| fixture.numbers(name));
    let (mut num_skipped, mut num_updated) = (0, 0);
    for (step, expected) in losses.iter().zip(&norms).enumerate() {
        roundhouse_c10d::zero_grad(parameters.tensors_mut()).unwrap();
        let loss = loss(&parameters, &fixture, Kind::Half);
        roundhouse_c10d::backward(&(&loss * scale.scale)).unwrap();
        let Measured {
            norm,
            is_finite,
            divisor,
        } = clip::measure(&parameters, Some(scale.scale), Some(MAX_NORM)).unwrap();
        let found = loss.double_value(&[]);
        assert!(close(found, *expected.0, 1e-4), "step {step}: loss {found}");
        assert_eq!(is_finite, expected.1.is_finite(), "step {step}");
        if is_finite {
            assert!(close(norm, *expected.1, 1e-3), "step {step}: norm {norm}");
            let rate = Rate {
                learning_rate: config.learning_rate,
                step: num_updated + 1,
            };
            let signals = Signals {
                divisor: divisor.as_ref(),
                ..Signals::default()
            };
            update.apply(&mut parameters, rate, signals).unwrap();
            num_updated += 1;
        } else {
            num_skipped += 1;
        }
        scale = scale.after(!is_finite, &SETTINGS);
        assert_eq!(scale.scale.to_bits(), scales[step].to_bits(), "step {step}");
    }
    assert_eq!((num_skipped, num_updated), (8, 32));
    assert_weights(&parameters, &fixture, 1e-4);
}

/// Same settings as in `fixtures/loss_scale.py`.
fn optimizer() -> Optimizer {
    Optimizer {
        learning_rate: 0.1,
        momentum: 0.9,
        ..Optimizer::default()
    }
}

/// Asserts the final weights, with a tolerance relative to the largest element of each tensor.
fn assert_weights(parameters: &Parameters, fixture: &Fixture, tolerance: f64) {
    for (name, found) in parameters.iter() {
        let expected = fixture.get(name);
        let difference = (found - expected).abs().max() / expected.abs().max();
        let difference = difference.double_value(&[]);
        println!("{name}: {difference:.1e}");
        assert!(difference <= tolerance, "{name} differs by {difference:e}");
    }
}

#[test]
fn bf16_training_equals_pytorch() {
    let fixture = Fixture::read("bf16");
    let mut parameters = fixture.initial();
    let config = optimizer();
    let mut update = optimizers::build(&config, &parameters).unwrap();
    let [losses, norms] = ["losses", "norms"].map(|name| fixture.numbers(name));
    for (step, (expected_loss, expected_norm)) in (1..).zip(losses.iter().zip(&norms)) {
        roundhouse_c10d::zero_grad(parameters.tensors_mut()).unwrap();
        let loss = loss(&parameters, &fixture, Kind::BFloat16);
        roundhouse_c10d::backward(&loss).unwrap();
        let Measured { norm, divisor, .. } =
            clip::measure(&parameters, None, Some(MAX_NORM)).unwrap();
        let loss = loss.double_value(&[]);
        assert!(
            close(loss, *expected_loss, 1e-3),
            "step {step}: loss {loss}"
        );
        assert!(
            close(norm, *expected_norm, 5e-3),
            "step {step}: norm {norm}"
        );
        let rate = Rate {
            learning_rate: config.learning_rate,
            step,
        };
        let signals = Signals {
            divisor: divisor.as_ref(),
            ..Signals::default()
        };
        update.apply(&mut parameters, rate, signals).unwrap();
    }
    assert_eq!(losses.len(), 40);
    assert_weights(&parameters, &fixture, 1e-3);
}

#[test]
fn unscaling_precedes_clipping_and_covers_statistics() {
    let mut parameters = Parameters::default();
    let two = Tensor::from_slice(&[1.0_f32, 1.0]);
    parameters.push("weight", Role::Weight, &two).unwrap();
    let statistic = Role::Statistic { momentum: 0.1 };
    parameters.push("mean", statistic, &two).unwrap();
    let value = Tensor::from_slice(&[3.0_f32, 4.0]);
    let gradients = |parameters: &mut Parameters, factor: f64| {
        roundhouse_c10d::zero_grad(parameters.tensors_mut()).unwrap();
        let terms = (parameters.at(0) + parameters.at(1)) * &value;
        roundhouse_c10d::backward(&(terms.sum(Kind::Float) * factor)).unwrap();
    };
    for (factor, most, expected) in [
        (None, None, None),
        (None, Some(2.5), Some(2.0)),
        (Some(1_024.0), None, Some(1_024.0)),
        (Some(1_024.0), Some(2.5), Some(2_048.0)),
        (Some(1_024.0), Some(10.0), Some(1_024.0)),
    ] {
        gradients(&mut parameters, factor.unwrap_or(1.0));
        let measured = clip::measure(&parameters, factor, most).unwrap();
        assert!(measured.is_finite && close(measured.norm, 5.0, 1e-6));
        let found = measured.divisor.map(|divisor| divisor.double_value(&[]));
        match (found, expected) {
            (None, None) => {}
            (Some(found), Some(expected)) => assert!(close(found, expected, 1e-6), "{found}"),
            other => panic!("{other:?}"),
        }
        assert_eq!(parameters.at(1).grad(), value);
    }
    gradients(&mut parameters, f64::INFINITY);
    assert!(!clip::measure(&parameters, None, None).unwrap().is_finite);
}

#[test]
fn overflowing_statistic_is_not_finite() {
    let mut parameters = Parameters::default();
    let one = Tensor::from_slice(&[1.0_f32]);
    parameters.push("weight", Role::Weight, &one).unwrap();
    let statistic = Role::Statistic { momentum: 0.1 };
    parameters.push("mean", statistic, &one).unwrap();
    let loss = parameters.at(0) + parameters.at(1) * f64::INFINITY;
    roundhouse_c10d::backward(&loss.sum(Kind::Float)).unwrap();
    let measured = clip::measure(&parameters, None, None).unwrap();
    assert!(close(measured.norm, 1.0, 1e-6) && !measured.is_finite);
}
