//! Forward pass, loss and gradients equal those of PyTorch, torchvision and Transformers for the
//! same weights.

use roundhouse_contract::trainer::model::{Model as ModelConfig, ModelName};
use roundhouse_trainer::models::{
    Bert, Classifier, Cnn, Depth, Gpt2, ImageShape, Llama, Mlp, Network, ResNet,
};
use roundhouse_trainer::random::seeded;
use roundhouse_trainer::{Batch, Mode, Parameters, Task, weights};
use tch::{Kind, TchError, Tensor};

use crate::fixture::{
    DOUBLE, Fixture, SINGLE, assert_close, assert_close_among, assert_summary, gradients, path,
};
use crate::formula;

const TRAIN: Mode = Mode::Train {
    seed: 0,
    step: 1,
    slice: 0,
};

pub(crate) fn images(shape: &[i64]) -> ImageShape {
    ImageShape {
        num_channels: shape[1],
        height: shape[2],
        width: shape[3],
        num_classes: 10,
    }
}

fn check_classifier<N: Network + 'static>(
    name: &str,
    shape: [i64; 4],
    num_classes: i64,
    build: impl FnOnce(&mut Parameters, &ImageShape) -> Result<N, TchError>,
) {
    let fixture = Fixture::read(name);
    let image = ImageShape {
        num_classes,
        ..images(&shape)
    };
    let build = |parameters: &mut Parameters| build(parameters, &image);
    let mut model = seeded(0, || Classifier::new(0.1, build)).unwrap();
    formula::fill(model.parameters_mut());
    let batch = Batch {
        inputs: formula::values("inputs", &shape, 2.0, 0.0),
        targets: formula::tokens("targets", &shape[..1], num_classes),
        num_samples: shape[0].unsigned_abs(),
    };
    let evaluated = fixture.tensor("logits.evaluate");
    let scores = model.scores(&batch.inputs, Mode::Evaluate).unwrap();
    assert_close("logits.evaluate", SINGLE, &scores, evaluated);
    // Compare the rest in double precision: in single precision rounding grows to 1e-4 in 50
    // normalized layers.
    for tensor in model.parameters_mut().tensors_mut() {
        *tensor = tensor
            .detach()
            .to_kind(Kind::Double)
            .set_requires_grad(true);
    }
    let batch = Batch {
        inputs: batch.inputs.to_kind(Kind::Double),
        ..batch
    };
    for (mode, logits) in [(Mode::Evaluate, "logits.evaluate"), (TRAIN, "logits")] {
        let scores = model.scores(&batch.inputs, mode).unwrap();
        assert_close(logits, DOUBLE, &scores, fixture.tensor(logits));
    }
    let loss = model.loss(&batch, TRAIN).unwrap().loss / shape[0] as f64;
    assert_close("loss", DOUBLE, &loss, fixture.tensor("loss"));
    loss.backward();
    assert_summary(&fixture, "gradient", &gradients(model.parameters(), true));
    // The "gradient" of a running statistic is the statistic of the batch. PyTorch's momentum is
    // 0.1.
    let running: Vec<(&str, Tensor)> = gradients(model.parameters(), false)
        .into_iter()
        .map(|(name, batch)| {
            let before = formula::weight(name, &batch.size()).to_kind(Kind::Double);
            (name, before * 0.9 + batch * 0.1)
        })
        .collect();
    if !running.is_empty() {
        assert_summary(&fixture, "statistic", &running);
    }
}

#[test]
fn linear_equals_pytorch() {
    check_classifier("linear", [5, 3, 2, 2], 4, Mlp::linear);
}

#[test]
fn mlp_equals_pytorch() {
    check_classifier("mlp", [5, 3, 2, 2], 4, |p, shape| {
        Mlp::new(p, &[7, 5], shape)
    });
}

#[test]
fn cnn_equals_pytorch() {
    check_classifier("cnn", [5, 2, 8, 8], 3, |p, shape| {
        Cnn::new(p, &[4, 6], shape)
    });
}

pub(crate) fn resnet(
    depth: Depth,
) -> impl FnOnce(&mut Parameters, &ImageShape) -> Result<ResNet, TchError> {
    move |parameters, shape| {
        let mut config = ModelConfig::new(ModelName::Resnet18);
        config.ghost_batch = Some(0);
        ResNet::new(parameters, depth, &config, shape)
    }
}

#[test]
fn resnet18_equals_torchvision() {
    check_classifier("resnet18", [4, 3, 64, 64], 10, resnet(Depth::Layers18));
}

#[test]
fn resnet50_equals_torchvision() {
    check_classifier("resnet50", [4, 3, 64, 64], 10, resnet(Depth::Layers50));
}

/// Loads the weights of Transformers, and compares the results of both models.
fn check_language<T: Task>(
    name: &str,
    mut model: T,
    scores: impl FnOnce(&T, &Tensor) -> Result<Tensor, TchError>,
) {
    let fixture = Fixture::read(name);
    let file = path(&format!("{name}.weights"));
    let loaded = weights::load(&file, model.parameters_mut(), &[]).unwrap();
    assert_eq!(loaded, weights::Loaded::default());
    let batch = Batch {
        inputs: fixture.tensor("inputs").copy(),
        targets: fixture.tensor("targets").copy(),
        num_samples: 3,
    };
    let scores = scores(&model, &batch.inputs).unwrap();
    assert_close("logits", SINGLE, &scores, fixture.tensor("logits"));
    let loss = model.loss(&batch, TRAIN).unwrap().loss / 3.0;
    assert_close("loss", SINGLE, &loss, fixture.tensor("loss"));
    loss.backward();
    let ours = gradients(model.parameters(), true);
    let theirs = |name: &str| fixture.tensor(&format!("gradient.{name}"));
    let largest = |name: &str| theirs(name).abs().max().double_value(&[]);
    let scale = ours
        .iter()
        .map(|(name, _)| largest(name))
        .fold(0.0, f64::max);
    for (name, gradient) in &ours {
        assert_close_among(name, SINGLE, gradient, theirs(name), scale);
    }
    let sums = tch::no_grad(|| model.loss(&batch, Mode::Evaluate)).unwrap();
    let count = |place: usize| sums.counts[place].1.double_value(&[]);
    let mean = Tensor::from(count(0) / count(1));
    let wanted = if name == "switch" {
        "evaluation"
    } else {
        "loss"
    };
    assert_close("nll / tokens", SINGLE, &mean, fixture.tensor(wanted));
}

#[test]
fn gpt2_equals_transformers() {
    check_language("gpt2", gpt2(), |model, tokens| model.scores(tokens, TRAIN));
}

#[test]
fn bert_equals_transformers() {
    check_language("bert", bert(), |model, tokens| model.scores(tokens, TRAIN));
}

#[test]
fn llama_equals_transformers() {
    for tied in [false, true] {
        let name = if tied { "llama-tied" } else { "llama" };
        check_language(name, llama(tied), |model, tokens| {
            model.scores(tokens, TRAIN)
        });
    }
}

#[test]
fn switch_equals_transformers() {
    check_language("switch", switch(), |model, tokens| {
        model.scores(tokens, TRAIN)
    });
}

/// Each of four experts takes 3 of 12 tokens.
pub(crate) fn switch() -> Gpt2 {
    let mut config = ModelConfig::new(ModelName::Switch);
    (config.layers, config.heads, config.width) = (Some(2), Some(2), Some(16));
    (config.context, config.vocabulary) = (Some(16), Some(50));
    (config.num_experts, config.capacity_factor) = (Some(4), Some(1.0));
    seeded(0, || Gpt2::new(&config, 12)).unwrap()
}

pub(crate) fn llama(tied: bool) -> Llama {
    let mut config = ModelConfig::new(ModelName::Llama);
    (config.layers, config.heads, config.width) = (Some(2), Some(4), Some(16));
    (config.inner_width, config.vocabulary) = (Some(24), Some(50));
    config.num_key_value_heads = Some(2);
    if tied {
        config.num_key_value_heads = Some(1);
        (config.rope_theta, config.norm_epsilon) = (Some(500.0), Some(1e-3));
        config.tie_embeddings = Some(true);
    }
    seeded(0, || Llama::new(&config, 12)).unwrap()
}

pub(crate) fn gpt2() -> Gpt2 {
    let mut config = ModelConfig::new(ModelName::Gpt2);
    (config.layers, config.heads, config.width) = (Some(2), Some(2), Some(16));
    (config.context, config.vocabulary) = (Some(16), Some(50));
    seeded(0, || Gpt2::new(&config, 12)).unwrap()
}

pub(crate) fn bert() -> Bert {
    let mut config = ModelConfig::new(ModelName::Bert);
    (config.layers, config.heads, config.width) = (Some(2), Some(2), Some(16));
    (config.context, config.vocabulary) = (Some(24), Some(50));
    seeded(0, || Bert::new(&config, 20)).unwrap()
}
