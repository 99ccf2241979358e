//! Activation checkpointing does not change a bit of losses and gradients.

use roundhouse_c10d::{Autocast, backward, zero_grad};
use roundhouse_contract::trainer::ActivationCheckpointing;
use roundhouse_contract::trainer::model::{Model as ModelConfig, ModelName, Stem};
use roundhouse_trainer::models::{ImageShape, Samples, TokenShape, build};
use roundhouse_trainer::{Batch, Mode, Task};
use tch::{Device, Kind, Tensor};

use crate::formula;

const NUM_SAMPLES: i64 = 6;
const LENGTH: i64 = 20;

fn config(name: ModelName) -> ModelConfig {
    let mut config = ModelConfig::new(name);
    if name.reads_images() {
        (config.stem, config.ghost_batch) = (Some(Stem::Cifar), Some(2));
        return config;
    }
    (config.layers, config.heads, config.width) = (Some(3), Some(2), Some(16));
    (config.context, config.vocabulary) = (Some(20), Some(50));
    config.dropout = Some(0.2);
    if name == ModelName::Llama {
        (config.num_key_value_heads, config.inner_width) = (Some(1), Some(24));
    }
    config
}

fn model(config: &ModelConfig, checkpointing: ActivationCheckpointing) -> Box<dyn Task> {
    let samples = if config.name.reads_images() {
        Samples::Images(ImageShape {
            num_channels: 3,
            height: 8,
            width: 8,
            num_classes: 10,
        })
    } else {
        Samples::Tokens(TokenShape {
            length: LENGTH,
            vocabulary: 50,
        })
    };
    build(config, checkpointing, samples, 1).unwrap()
}

fn batch(name: ModelName) -> Batch {
    let (inputs, targets) = if name.reads_images() {
        (
            formula::values("inputs", &[NUM_SAMPLES, 3, 8, 8], 2.0, 0.0),
            formula::tokens("targets", &[NUM_SAMPLES], 10),
        )
    } else {
        let shape = [NUM_SAMPLES, LENGTH];
        let targets = formula::tokens("targets", &shape, 50);
        let place = Tensor::arange(LENGTH, tch::kind::INT64_CPU);
        let targets = if name == ModelName::Bert {
            targets.masked_fill(&place.remainder(7).ne(3), -100)
        } else {
            targets
        };
        (formula::tokens("inputs", &shape, 50), targets)
    };
    Batch {
        inputs,
        targets,
        num_samples: NUM_SAMPLES.unsigned_abs(),
    }
}

fn bits(tensor: &Tensor) -> Vec<u32> {
    let values = Vec::<f32>::try_from(tensor.contiguous().flatten(0, -1)).unwrap();
    values.into_iter().map(f32::to_bits).collect()
}

/// Bits of the losses of two passes, and of the gradients of all parameters and statistics after
/// both, by name.
fn losses_and_gradients(
    task: &mut dyn Task,
    batch: &Batch,
    precision: Kind,
) -> Vec<(String, Vec<u32>)> {
    zero_grad(task.parameters_mut().tensors_mut()).unwrap();
    let mut found = Vec::new();
    for slice in 0..2 {
        let mode = Mode::Train {
            seed: 5,
            step: 3,
            slice,
        };
        let guard = Autocast::enter(Device::Cpu, precision).unwrap();
        let loss = task.loss(batch, mode).unwrap().loss;
        drop(guard);
        backward(&loss).unwrap();
        found.push((format!("loss of slice {slice}"), bits(&loss.reshape([1]))));
    }
    let gradients = task.parameters().iter();
    found.extend(gradients.map(|(name, tensor)| (name.to_owned(), bits(&tensor.grad()))));
    found
}

fn assert_equal_bits(config: &ModelConfig, precision: Kind) {
    // Kernels may split sums by the number of free threads.
    tch::set_num_threads(1);
    let batch = batch(config.name);
    let [plain, recomputed] = [
        ActivationCheckpointing::None,
        ActivationCheckpointing::Blocks,
    ]
    .map(|switch| losses_and_gradients(&mut *model(config, switch), &batch, precision));
    assert_eq!(plain.len(), recomputed.len());
    for ((name, plain), (_, recomputed)) in plain.iter().zip(&recomputed) {
        assert!(
            plain == recomputed,
            "{:?}, {precision:?}: {name}",
            config.name
        );
        assert!(plain.iter().any(|value| *value != 0), "{name} is 0");
    }
}

#[test]
fn recomputed_gpt2_with_dropout_is_bit_identical() {
    for precision in [Kind::Float, Kind::BFloat16] {
        assert_equal_bits(&config(ModelName::Gpt2), precision);
    }
}

#[test]
fn recomputed_bert_with_dropout_is_bit_identical() {
    for precision in [Kind::Float, Kind::BFloat16] {
        assert_equal_bits(&config(ModelName::Bert), precision);
    }
}

#[test]
fn recomputed_llama_with_dropout_is_bit_identical() {
    for precision in [Kind::Float, Kind::BFloat16] {
        assert_equal_bits(&config(ModelName::Llama), precision);
    }
}

#[test]
fn recomputed_switch_with_dropout_is_bit_identical() {
    let mut config = config(ModelName::Switch);
    (config.layers, config.num_experts) = (Some(4), Some(4));
    for precision in [Kind::Float, Kind::BFloat16] {
        assert_equal_bits(&config, precision);
    }
}

#[test]
fn recomputed_resnet_with_ghost_batches_is_bit_identical() {
    for precision in [Kind::Float, Kind::BFloat16] {
        assert_equal_bits(&config(ModelName::Resnet18), precision);
    }
    assert_equal_bits(&config(ModelName::Resnet50), Kind::Float);
}

/// A bias is used once per pass, unless the backward pass recomputes its block.
#[test]
fn each_block_is_recomputed_in_the_backward_pass() {
    for (name, biases) in [
        (
            ModelName::Gpt2,
            ["h.0.attn.c_attn.bias", "h.2.mlp.c_proj.bias"],
        ),
        (
            ModelName::Bert,
            [
                "layer.0.attention.self.query.bias",
                "layer.2.output.dense.bias",
            ],
        ),
        (
            ModelName::Resnet18,
            ["layer1.0.bn1.bias", "layer4.1.bn2.bias"],
        ),
        (
            ModelName::Resnet50,
            ["layer1.0.bn1.bias", "layer4.2.bn3.bias"],
        ),
    ] {
        for (switch, fails) in [
            (ActivationCheckpointing::None, false),
            (ActivationCheckpointing::Blocks, true),
        ] {
            for bias in biases {
                let model = model(&config(name), switch);
                let mode = Mode::Train {
                    seed: 5,
                    step: 3,
                    slice: 0,
                };
                let loss = model.loss(&batch(name), mode).unwrap().loss;
                let (_, tensor) = model
                    .parameters()
                    .iter()
                    .find(|(name, _)| name.ends_with(bias))
                    .unwrap();
                let _ = tensor.detach().fill_(1.0);
                let outcome = backward(&loss);
                assert_eq!(outcome.is_err(), fails, "{name:?}, {switch:?}: {bias}");
            }
        }
    }
}

/// A `llama` has no biases. The input of a block's last product is 0 in the backward pass if its
/// normalization became 0 after the forward pass, and if the backward pass recomputes the block.
#[test]
fn each_block_of_a_llama_is_recomputed() {
    for (switch, is_zero) in [
        (ActivationCheckpointing::None, false),
        (ActivationCheckpointing::Blocks, true),
    ] {
        for layer in 0..3 {
            let model = model(&config(ModelName::Llama), switch);
            let tensor = |part: &str| {
                let name = format!("model.layers.{layer}.{part}.weight");
                let mut named = model.parameters().iter();
                named.find(|(found, _)| *found == name).unwrap().1
            };
            let mode = Mode::Train {
                seed: 5,
                step: 3,
                slice: 0,
            };
            let loss = model.loss(&batch(ModelName::Llama), mode).unwrap().loss;
            // Autograd refuses a change of a saved tensor, unless it is made through its data.
            let _ = tensor("post_attention_layernorm").data().fill_(0.0);
            backward(&loss).unwrap();
            let largest = tensor("mlp.down_proj").grad().abs().max();
            assert_eq!(
                largest.double_value(&[]) == 0.0,
                is_zero,
                "{switch:?}: block {layer}"
            );
        }
    }
}

#[test]
fn evaluation_has_the_same_loss_and_keeps_no_activations() {
    for name in [
        ModelName::Gpt2,
        ModelName::Bert,
        ModelName::Llama,
        ModelName::Switch,
        ModelName::Resnet18,
    ] {
        let [plain, recomputed] = [
            ActivationCheckpointing::None,
            ActivationCheckpointing::Blocks,
        ]
        .map(|switch| {
            let model = model(&config(name), switch);
            let loss = tch::no_grad(|| model.loss(&batch(name), Mode::Evaluate))
                .unwrap()
                .loss;
            assert!(!loss.requires_grad());
            bits(&loss.reshape([1]))
        });
        assert_eq!(plain, recomputed, "{name:?}");
    }
}
