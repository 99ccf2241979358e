use tch::{Device, Kind};

use super::*;
use crate::format::{MemoryFormat, contiguous};

/// Numbers of both signs, a function of the seed. All threads share libtorch's generator, so
/// parallel tests would change each other's numbers if they used it.
fn random(seed: i32) -> Vec<Tensor> {
    let numbers = |length: i64| {
        let places =
            Tensor::arange(length, (Kind::Double, Device::Cpu)) + f64::from(100 * seed + 1);
        ((places.square() * 0.7).sin() * 2.0).to_kind(Kind::Float)
    };
    vec![numbers(17), numbers(96).reshape([2, 3, 4, 4])]
}

fn zeros() -> Vec<Tensor> {
    random(0).iter().map(Tensor::zeros_like).collect()
}

fn copies(list: &[Tensor]) -> Vec<Tensor> {
    list.iter().map(Tensor::copy).collect()
}

fn assert_close(found: &[Tensor], wanted: &[Tensor]) {
    for (found, wanted) in found.iter().zip(wanted) {
        assert!(
            found.allclose(wanted, 1e-5, 1e-6, false),
            "{found} {wanted}"
        );
    }
}

const SGD: SgdUpdate = SgdUpdate {
    lr: 0.1,
    momentum: 0.9,
    weight_decay: 1e-2,
    nesterov: false,
};

const ADAMW: AdamWUpdate = AdamWUpdate {
    lr: 1e-2,
    beta1: 0.9,
    beta2: 0.99,
    eps: 1e-8,
    weight_decay: 0.1,
};

#[test]
fn sgd_equals_its_formula() {
    for (nesterov, momentum) in [(false, 0.0), (false, 0.9), (true, 0.9)] {
        let sgd = SgdUpdate {
            momentum,
            nesterov,
            ..SGD
        };
        let (mut weights, mut momenta) = (random(1), zeros());
        let (mut by_hand, mut m) = (random(1), zeros());
        for step in 0..4 {
            let gradients = random(10 + step);
            sgd.apply(&mut weights, &gradients, &mut momenta, Gate::default())
                .unwrap();
            for index in 0..weights.len() {
                let g = &gradients[index] + &by_hand[index] * sgd.weight_decay;
                m[index] = &m[index] * momentum + &g;
                let direction = if nesterov {
                    g + &m[index] * momentum
                } else {
                    m[index].copy()
                };
                by_hand[index] = &by_hand[index] - direction * sgd.lr;
            }
        }
        assert_close(&weights, &by_hand);
    }
}

#[test]
fn adamw_equals_its_formula() {
    let (mut weights, mut means, mut squares) = (random(1), zeros(), zeros());
    let mut step = Tensor::from(0_f32);
    let (mut by_hand, mut m, mut v) = (random(1), zeros(), zeros());
    for turn in 1..=4 {
        let gradients = random(10 + turn);
        let mut state = Moments {
            means: &mut means,
            squares: &mut squares,
            step: &mut step,
        };
        ADAMW
            .apply(&mut weights, &gradients, &mut state, Gate::default())
            .unwrap();
        let correction = |beta: f64| 1.0 - beta.powi(turn);
        for (index, g) in gradients.iter().enumerate() {
            m[index] = &m[index] * ADAMW.beta1 + g * (1.0 - ADAMW.beta1);
            v[index] = &v[index] * ADAMW.beta2 + g * g * (1.0 - ADAMW.beta2);
            let decayed = &by_hand[index] * (1.0 - ADAMW.lr * ADAMW.weight_decay);
            let root = (&v[index] / correction(ADAMW.beta2)).sqrt() + ADAMW.eps;
            by_hand[index] = decayed - &m[index] / correction(ADAMW.beta1) / root * ADAMW.lr;
        }
    }
    assert_close(&weights, &by_hand);
    assert_close(&means, &m);
    assert_close(&squares, &v);
    assert_eq!(step.double_value(&[]), 4.0);
}

#[test]
fn flag_of_1_protects_weights_and_state_from_garbage() {
    let garbage: Vec<Tensor> = random(3).iter().map(|tensor| tensor * f64::NAN).collect();
    let (mut weights, mut momenta) = (random(1), random(2));
    let (flag, clear) = (Tensor::from_slice(&[1_f32]), Tensor::from_slice(&[0_f32]));
    let gate = Gate {
        found_inf: Some(&flag),
        ..Gate::default()
    };
    SGD.apply(&mut weights, &garbage, &mut momenta, gate)
        .unwrap();
    assert_eq!((&weights, &momenta), (&random(1), &random(2)));
    let (mut means, mut squares, mut step) = (random(4), random(5), Tensor::from(7_f32));
    let mut state = Moments {
        means: &mut means,
        squares: &mut squares,
        step: &mut step,
    };
    ADAMW
        .apply(&mut weights, &garbage, &mut state, gate)
        .unwrap();
    assert_eq!(state.step.double_value(&[]), 7.0);
    assert_eq!(
        (&weights, &*state.means, &*state.squares),
        (&random(1), &*random(4), &*random(5))
    );
    // A flag of 0 does not skip the update.
    let gate = Gate {
        found_inf: Some(&clear),
        ..Gate::default()
    };
    ADAMW
        .apply(&mut weights, &random(6), &mut state, gate)
        .unwrap();
    assert_eq!(step.double_value(&[]), 8.0);
    assert_ne!(weights, random(1));
}

#[test]
fn scaled_gradients_are_divided_first() {
    let scale = Tensor::from_slice(&[1024_f32]);
    let scaled: Vec<Tensor> = random(3).iter().map(|tensor| tensor * 1024.0).collect();
    let (mut plain, mut weights) = (random(1), random(1));
    SGD.apply(&mut plain, &random(3), &mut zeros(), Gate::default())
        .unwrap();
    let gate = Gate {
        grad_scale: Some(&scale),
        ..Gate::default()
    };
    SGD.apply(&mut weights, &scaled, &mut zeros(), gate)
        .unwrap();
    assert_close(&weights, &plain);
}

#[test]
fn channels_last_update_is_equal_and_mixed_are_refused() {
    let to_last = |list: &[Tensor]| {
        let image = contiguous(&list[1], MemoryFormat::ChannelsLast).unwrap();
        vec![list[0].copy(), image]
    };
    let (mut weights, mut wanted) = (to_last(&random(1)), random(1));
    let mut momenta = to_last(&zeros());
    SGD.apply(
        &mut weights,
        &to_last(&random(3)),
        &mut momenta,
        Gate::default(),
    )
    .unwrap();
    SGD.apply(&mut wanted, &random(3), &mut zeros(), Gate::default())
        .unwrap();
    assert_close(&weights, &wanted);
    let before = copies(&weights);
    let error = SGD
        .apply(&mut weights, &random(3), &mut momenta, Gate::default())
        .unwrap_err();
    assert!(error.message.contains("gradient of parameter 1"), "{error}");
    assert_eq!(weights, before);
}

#[test]
fn strides_along_size_1_may_differ() {
    let numbers = |seed| random(seed)[1].narrow(2, 0, 1).narrow(3, 0, 1).contiguous();
    let strided = |tensor: &Tensor| tensor.as_strided([2, 3, 1, 1], [3, 1, 3, 3], None);
    let (mut weights, mut momenta) = ([numbers(1)], [numbers(0).zeros_like()]);
    let (mut plain, mut plain_momenta) = ([numbers(1)], [numbers(0).zeros_like()]);
    let gradients = [strided(&numbers(2))];
    assert_ne!(gradients[0].stride(), weights[0].stride());
    SGD.apply(&mut weights, &gradients, &mut momenta, Gate::default())
        .unwrap();
    SGD.apply(
        &mut plain,
        &[numbers(2)],
        &mut plain_momenta,
        Gate::default(),
    )
    .unwrap();
    assert_eq!(weights, plain);
    let mut transposed = [random(1)[1].copy()];
    let other = [contiguous(&random(2)[1], MemoryFormat::ChannelsLast).unwrap()];
    let mut momenta = [transposed[0].zeros_like()];
    assert!(
        SGD.apply(&mut transposed, &other, &mut momenta, Gate::default())
            .is_err()
    );
}
