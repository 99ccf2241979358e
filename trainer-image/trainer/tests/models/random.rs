//! Random numbers: initial weights are a function of the seed, dropout of seed, step and slice.
//! Also empty batches and batches in parts.

use roundhouse_contract::trainer::ActivationCheckpointing;
use roundhouse_contract::trainer::model::{Model as ModelConfig, ModelName};
use roundhouse_trainer::models::{BuildError, ImageShape, Samples, TokenShape, build};
use roundhouse_trainer::random::seeded;
use roundhouse_trainer::{Batch, Mode, Task};
use tch::{Kind, Tensor, kind::INT64_CPU};

use crate::formula;

const IMAGES: Samples = Samples::Images(ImageShape {
    num_channels: 3,
    height: 32,
    width: 32,
    num_classes: 10,
});
const TOKENS: Samples = Samples::Tokens(TokenShape {
    length: 8,
    vocabulary: 20,
});

fn small(name: ModelName) -> (ModelConfig, Samples) {
    let mut config = ModelConfig::new(name);
    if name.reads_images() {
        return (config, IMAGES);
    }
    (config.layers, config.heads, config.width) = (Some(2), Some(2), Some(16));
    (config.context, config.vocabulary) = (Some(8), Some(20));
    (config, TOKENS)
}

fn made(name: ModelName, seed: u64) -> Box<dyn Task> {
    let (config, samples) = small(name);
    build(&config, ActivationCheckpointing::None, samples, seed).unwrap()
}

fn equal(a: &dyn Task, b: &dyn Task) -> bool {
    let pairs = a
        .parameters()
        .tensors()
        .iter()
        .zip(b.parameters().tensors());
    pairs.into_iter().all(|(a, b)| a.equal(b))
}

const ALL: [ModelName; 9] = [
    ModelName::Linear,
    ModelName::Mlp,
    ModelName::Cnn,
    ModelName::Resnet18,
    ModelName::Resnet50,
    ModelName::Gpt2,
    ModelName::Bert,
    ModelName::Llama,
    ModelName::Switch,
];

#[test]
fn initial_weights_are_a_function_of_the_seed() {
    for name in ALL {
        let first = made(name, 1);
        assert!(equal(&*first, &*made(name, 1)), "{name:?}");
        assert!(!equal(&*first, &*made(name, 2)), "{name:?}");
        assert!(first.flops_per_sample().unwrap() > 0.0);
    }
}

#[test]
fn empty_batch_has_zero_loss_and_gradients() {
    for name in ALL {
        let task = made(name, 1);
        let batch = Batch {
            inputs: Tensor::zeros([0], INT64_CPU),
            targets: Tensor::zeros([0], INT64_CPU),
            num_samples: 0,
        };
        let mode = Mode::Train {
            seed: 1,
            step: 1,
            slice: 0,
        };
        let loss = task.loss(&batch, mode).unwrap().loss;
        loss.backward();
        assert!(loss.double_value(&[]).abs() < f64::EPSILON);
        for (name, tensor) in task.parameters().iter() {
            let largest = tensor.grad().abs().max().double_value(&[]);
            assert!(largest.abs() < f64::EPSILON, "{name}");
        }
    }
}

#[test]
fn dropout_is_a_function_of_seed_step_and_slice() {
    for name in [
        ModelName::Gpt2,
        ModelName::Bert,
        ModelName::Llama,
        ModelName::Switch,
    ] {
        let (mut config, samples) = small(name);
        config.dropout = Some(0.3);
        let task = build(&config, ActivationCheckpointing::None, samples, 1).unwrap();
        let tokens = Tensor::arange(16, INT64_CPU).reshape([2, 8]);
        let batch = Batch {
            inputs: tokens.copy(),
            targets: tokens.narrow(1, 0, 1).constant_pad_nd([0, 7]).masked_fill(
                &Tensor::from_slice(&[false, true, true, true, true, true, true, true]),
                -100,
            ),
            num_samples: 2,
        };
        let loss = |mode| {
            seeded(0, || drop(Tensor::rand([3], tch::kind::FLOAT_CPU)));
            task.loss(&batch, mode).unwrap().loss.double_value(&[])
        };
        let train = |seed, step, slice| loss(Mode::Train { seed, step, slice }).to_bits();
        let first = train(1, 1, 0);
        assert_eq!(first, train(1, 1, 0), "{name:?}");
        for other in [train(2, 1, 0), train(1, 2, 0), train(1, 1, 1)] {
            assert_ne!(first, other, "{name:?}");
        }
        assert_eq!(
            loss(Mode::Evaluate).to_bits(),
            loss(Mode::Evaluate).to_bits()
        );
    }
}

#[test]
fn losses_of_parts_add_up_to_the_loss_of_the_whole() {
    for name in [
        ModelName::Mlp,
        ModelName::Gpt2,
        ModelName::Llama,
        ModelName::Switch,
    ] {
        let task = made(name, 1);
        let (inputs, targets) = if name.reads_images() {
            (
                formula::values("inputs", &[5, 3, 32, 32], 2.0, 0.0),
                Tensor::arange(5, INT64_CPU),
            )
        } else {
            let tokens = Tensor::arange(45, INT64_CPU).remainder(20).reshape([5, 9]);
            (tokens.narrow(1, 0, 8), tokens.narrow(1, 1, 8))
        };
        let loss = |start, length: i64| {
            let batch = Batch {
                inputs: inputs.narrow(0, start, length),
                targets: targets.narrow(0, start, length),
                num_samples: length.unsigned_abs(),
            };
            let mode = Mode::Train {
                seed: 1,
                step: 1,
                slice: 0,
            };
            let loss = task.loss(&batch, mode).unwrap().loss;
            assert_eq!(loss.kind(), Kind::Float);
            loss.double_value(&[])
        };
        let (whole, parts) = (loss(0, 5), loss(0, 2) + loss(2, 3));
        assert!(
            (parts / whole - 1.0).abs() < 1e-6,
            "{name:?}: {parts} {whole}"
        );
    }
}

#[test]
fn model_that_does_not_fit_the_data_names_its_field() {
    type Change = fn(&mut ModelConfig);
    let cases: [(ModelName, Samples, Change, &str); 10] = [
        (ModelName::Custom, IMAGES, |_| {}, "model.name"),
        (ModelName::Custom, TOKENS, |_| {}, "model.name"),
        (ModelName::Gpt2, IMAGES, |_| {}, "model.name"),
        (ModelName::Llama, IMAGES, |_| {}, "model.name"),
        (ModelName::Switch, IMAGES, |_| {}, "model.name"),
        (
            ModelName::Llama,
            TOKENS,
            |c| c.context = Some(7),
            "model.context",
        ),
        (ModelName::Resnet18, TOKENS, |_| {}, "model.name"),
        (
            ModelName::Gpt2,
            TOKENS,
            |c| c.context = Some(7),
            "model.context",
        ),
        (
            ModelName::Bert,
            TOKENS,
            |c| c.vocabulary = Some(19),
            "model.vocabulary",
        ),
        (
            ModelName::Cnn,
            IMAGES,
            |c| c.channels = Some(vec![1; 6]),
            "model.channels",
        ),
    ];
    for (name, samples, change, field) in cases {
        let mut config = small(name).0;
        change(&mut config);
        match build(&config, ActivationCheckpointing::None, samples, 1) {
            Err(BuildError::Config(invalid)) => assert_eq!(invalid.field, field),
            other => panic!("{name:?}: {other:?}"),
        }
    }
}
