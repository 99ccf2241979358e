use tch::nn::{self, OptimizerConfig as _};
use tch::{Device, Kind};

use super::*;

/// Ten steps on a quadratic with libtorch's own optimizer and with ours, from the same weights.
fn assert_same_as_libtorch(
    config: &OptimizerConfig,
    build_reference: impl FnOnce(&nn::VarStore) -> nn::Optimizer,
) {
    let mut parameters = Parameters::default();
    parameters.add_layer("fc", &[3, 4]).unwrap();
    let mut reference = nn::VarStore::new(Device::Cpu);
    let copies: Vec<Tensor> = parameters
        .iter()
        .map(|(name, tensor)| reference.root().var_copy(&name.replace('.', "_"), tensor))
        .collect();
    reference.unfreeze();
    let mut reference_optimizer = build_reference(&reference);
    let mut optimizer = build(config, &parameters).unwrap();
    for step in 1..=10 {
        let rate = 0.1 / f64::from(step);
        let loss = |tensors: &[Tensor]| {
            (tensors[0].square().sum(Kind::Float) + tensors[1].sin().sum(Kind::Float)) * 0.7
        };
        reference_optimizer.set_lr(rate);
        reference_optimizer.backward_step(&loss(&copies));
        for tensor in parameters.tensors_mut() {
            tensor.zero_grad();
        }
        loss(parameters.tensors()).backward();
        optimizer
            .step(&mut parameters, rate, u64::try_from(step).unwrap())
            .unwrap();
    }
    for ((name, ours), theirs) in parameters.iter().zip(&copies) {
        let difference = (ours - theirs).abs().max().double_value(&[]);
        assert!(difference < 1e-6, "{name} differs by {difference}");
    }
}

#[test]
fn sgd_with_momentum_and_decay_is_libtorchs() {
    let config = OptimizerConfig {
        momentum: 0.9,
        weight_decay: 0.01,
        ..OptimizerConfig::default()
    };
    assert_same_as_libtorch(&config, |variables| {
        nn::sgd(0.9, 0.0, 0.01, false)
            .build(variables, 0.1)
            .unwrap()
    });
}

#[test]
fn adamw_is_libtorchs() {
    let config = OptimizerConfig {
        name: OptimizerName::Adamw,
        weight_decay: 0.05,
        ..OptimizerConfig::default()
    };
    assert_same_as_libtorch(&config, |variables| {
        nn::adamw(0.9, 0.999, 0.05).build(variables, 0.1).unwrap()
    });
}

#[test]
fn two_steps_of_sgd_are_those_computed_by_hand() {
    let mut parameters = Parameters::default();
    parameters.add_layer("fc", &[1, 1]).unwrap();
    let _ = tch::no_grad(|| parameters.tensors_mut()[0].fill_(1.0));
    let config = OptimizerConfig {
        momentum: 0.5,
        ..OptimizerConfig::default()
    };
    let mut optimizer = build(&config, &parameters).unwrap();
    for step in 1..=2 {
        for tensor in parameters.tensors_mut() {
            tensor.zero_grad();
        }
        // Gradient 2 for both: buffer 2, then 3; weight 1 - 0.1*2 - 0.1*3.
        let [weight, bias] = parameters.tensors() else {
            panic!("two tensors");
        };
        ((weight + bias) * 2.0).sum(Kind::Float).backward();
        optimizer.step(&mut parameters, 0.1, step).unwrap();
    }
    let weight = parameters.tensors()[0].double_value(&[0, 0]);
    assert!((weight - 0.5).abs() < 1e-6, "{weight}");
}
