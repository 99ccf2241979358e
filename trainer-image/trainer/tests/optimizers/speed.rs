//! Measures one update of the tensors of a ResNet-50. Run it with
//! `cargo test --release -p roundhouse-trainer --test optimizers -- --ignored --nocapture`.

use std::time::Instant;

use roundhouse_contract::trainer::{Optimizer, OptimizerName};
use roundhouse_trainer::{Parameters, Rate, Role, Signals, clip, optimizers};
use tch::{Kind, Tensor};

/// The shapes of the 161 tensors of a ResNet-50: 53 convolutions with a normalization each, and a
/// linear layer.
fn shapes() -> Vec<Vec<i64>> {
    fn conv(shapes: &mut Vec<Vec<i64>>, channels: i64, from: i64, size: i64) {
        shapes.extend([
            vec![channels, from, size, size],
            vec![channels],
            vec![channels],
        ]);
    }
    let mut shapes = Vec::new();
    conv(&mut shapes, 64, 3, 7);
    let mut from = 64;
    for (width, num_blocks) in [(64, 3), (128, 4), (256, 6), (512, 3)] {
        for block in 0..num_blocks {
            conv(&mut shapes, width, from, 1);
            conv(&mut shapes, width, width, 3);
            conv(&mut shapes, 4 * width, width, 1);
            if block == 0 {
                conv(&mut shapes, 4 * width, from, 1);
            }
            from = 4 * width;
        }
    }
    shapes.extend([vec![1000, 2048], vec![1000]]);
    shapes
}

/// Parameters of a ResNet-50, with gradients.
fn resnet50() -> Parameters {
    let mut parameters = Parameters::default();
    for (place, shape) in shapes().iter().enumerate() {
        let value = Tensor::randn(shape, (Kind::Float, tch::Device::Cpu)) * 0.02;
        parameters
            .push(place.to_string(), Role::Weight, &value)
            .unwrap();
    }
    let squares = parameters
        .tensors()
        .iter()
        .map(|w| w.square().sum(Kind::Float));
    squares.sum::<Tensor>().backward();
    parameters
}

/// Fastest of 15 runs after 3 warm-up runs, in milliseconds. On a shared machine, slower runs
/// measure the load of other programs.
fn fewest_ms(mut run: impl FnMut(u64)) -> f64 {
    let time = |step| {
        let started = Instant::now();
        run(step);
        started.elapsed().as_secs_f64() * 1e3
    };
    (1..=18).map(time).skip(3).fold(f64::INFINITY, f64::min)
}

/// SGD with momentum and decay as a plain sequence of operations.
fn sgd_by_hand(parameters: &mut Parameters, buffers: &mut [Tensor]) {
    tch::no_grad(|| {
        for (weight, buffer) in parameters.tensors_mut().iter_mut().zip(buffers) {
            let _ = buffer.f_mul_scalar_(0.9).unwrap();
            let _ = buffer.f_add_(&weight.grad()).unwrap();
            let _ = buffer.f_add_(&weight.f_mul_scalar(1e-4).unwrap()).unwrap();
            let _ = weight.f_sub_(&buffer.f_mul_scalar(0.01).unwrap()).unwrap();
        }
    });
}

/// `AdamW` as a plain sequence of operations.
fn adamw_by_hand(parameters: &mut Parameters, first: &mut [Tensor], second: &mut [Tensor]) {
    tch::no_grad(|| {
        let moments = first.iter_mut().zip(second);
        for (weight, (first, second)) in parameters.tensors_mut().iter_mut().zip(moments) {
            let gradient = weight.grad();
            let _ = weight.f_mul_scalar_(0.9999).unwrap();
            let _ = first.f_lerp_(&gradient, 0.1).unwrap();
            let square = (&gradient * &gradient).f_mul_scalar_(0.001).unwrap();
            let _ = second
                .f_mul_scalar_(0.999)
                .unwrap()
                .f_add_(&square)
                .unwrap();
            let denominator = second.sqrt().f_div_scalar_(0.5).unwrap();
            let denominator = denominator.shallow_clone().f_add_scalar_(1e-8).unwrap();
            let change = first
                .f_mul_scalar(0.01)
                .unwrap()
                .f_div_(&denominator)
                .unwrap();
            let _ = weight.f_sub_(&change).unwrap();
        }
    });
}

#[test]
fn shapes_are_those_of_a_resnet50() {
    let num_weights: i64 = shapes()
        .iter()
        .map(|shape| shape.iter().product::<i64>())
        .sum();
    assert_eq!((shapes().len(), num_weights), (161, 25_557_032));
}

#[test]
#[ignore = "a measurement"]
fn time_of_one_update() {
    let mut parameters = resnet50();
    let zeros = |parameters: &Parameters| -> Vec<Tensor> {
        parameters
            .tensors()
            .iter()
            .map(|w| w.detach().zeros_like())
            .collect()
    };
    let (mut first, mut second) = (zeros(&parameters), zeros(&parameters));
    println!("threads: {}", tch::get_num_threads());
    println!("| update | ms |\n|---|---|");
    let ms = fewest_ms(|_| sgd_by_hand(&mut parameters, &mut first));
    println!("| sgd, by hand | {ms:.1} |");
    let ms = fewest_ms(|_| adamw_by_hand(&mut parameters, &mut first, &mut second));
    println!("| adamw, by hand | {ms:.1} |");
    let names = [
        OptimizerName::Sgd,
        OptimizerName::Adamw,
        OptimizerName::Lars,
        OptimizerName::Lamb,
    ];
    for name in names {
        let config = Optimizer {
            name,
            weight_decay: 1e-4,
            ..Optimizer::default()
        };
        let mut update = optimizers::build(&config, &parameters).unwrap();
        let (flag, divisor) = (Tensor::from(0.0_f32), Tensor::from(1.0_f32));
        for (what, skip, divisor) in [
            ("", None, None),
            (", clipped", None, Some(&divisor)),
            (", with a flag", Some(&flag), None),
        ] {
            let ms = fewest_ms(|step| {
                let rate = Rate {
                    learning_rate: 1e-3,
                    step,
                };
                update
                    .apply(&mut parameters, rate, Signals { skip, divisor })
                    .unwrap();
            });
            println!("| {name:?}{what} | {ms:.1} |");
        }
    }
    let ms = fewest_ms(|_| {
        let _ = clip::gradient_norm(&parameters).unwrap().double_value(&[]);
    });
    println!("| norm of the gradient | {ms:.1} |");
}
