//! The built-in models, each a [`Task`]: a model, its loss and the counts of an evaluation.

use roundhouse_contract::trainer::model::{Model as ModelConfig, ModelName};
use roundhouse_contract::trainer::options::NEEDS_OWN_PROGRAM;
use roundhouse_contract::trainer::{ActivationCheckpointing, ConfigInvalid};
use tch::TchError;

use crate::parameters::Parameters;
use crate::random::seeded;
use crate::task::Task;

pub mod bert;
pub mod classifier;
mod cnn;
pub mod gpt2;
mod init;
mod layers;
pub mod llama;
pub mod masking;
mod mlp;
mod norm;
mod pass;
mod resnet;
mod switch;
mod transformer;

pub use bert::Bert;
pub use classifier::{Classifier, Network};
pub use cnn::Cnn;
pub use gpt2::Gpt2;
pub use llama::Llama;
pub use mlp::Mlp;
pub use norm::{BatchNorm, Groups};
pub use pass::Pass;
pub use resnet::{Depth, ResNet};

/// The kind and size of a data set's samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Samples {
    /// Images of one size, each with a class.
    Images(ImageShape),
    /// Sequences of tokens of one length.
    Tokens(TokenShape),
}

/// Size of images and number of classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageShape {
    /// Number of channels C.
    pub num_channels: i64,
    /// Height H in pixels.
    pub height: i64,
    /// Width W in pixels.
    pub width: i64,
    /// Number of different classes.
    pub num_classes: i64,
}

/// Length of sequences and number of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenShape {
    /// Number of tokens T of each sequence.
    pub length: i64,
    /// Number of different tokens in the data; 0 if unknown.
    pub vocabulary: i64,
}

/// Why a model cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The configuration does not fit the data.
    #[error(transparent)]
    Config(#[from] ConfigInvalid),
    /// The weights exceed the memory.
    #[error("libtorch: {0}")]
    Torch(#[from] TchError),
}

/// Builds the model of a valid configuration on the CPU. The initial weights are a function of
/// `seed`. `checkpointing` selects the activations that the backward pass recomputes; a model
/// without blocks ignores it.
///
/// # Errors
/// The model is `custom` or does not fit the data, or its weights exceed the memory.
pub fn build(
    config: &ModelConfig,
    checkpointing: ActivationCheckpointing,
    samples: Samples,
    seed: u64,
) -> Result<Box<dyn Task>, BuildError> {
    if config.name == ModelName::Custom {
        return Err(invalid("model.name", NEEDS_OWN_PROGRAM.to_owned()).into());
    }
    let recomputes = checkpointing == ActivationCheckpointing::Blocks;
    seeded(seed, || match samples {
        Samples::Images(shape) => of_images(config, recomputes, &shape),
        Samples::Tokens(shape) => of_tokens(config, recomputes, &shape),
    })
}

fn of_images(
    config: &ModelConfig,
    recomputes: bool,
    shape: &ImageShape,
) -> Result<Box<dyn Task>, BuildError> {
    let smoothing = config.label_smoothing();
    Ok(Box::new(match config.name {
        ModelName::Linear => Classifier::new(smoothing, |p| Mlp::linear(p, shape))?,
        ModelName::Mlp => Classifier::new(smoothing, |p| Mlp::new(p, config.hidden(), shape))?,
        ModelName::Cnn => {
            cnn::fits(config.channels(), shape)
                .map_err(|message| invalid("model.channels", message))?;
            Classifier::new(smoothing, |p| Cnn::new(p, config.channels(), shape))?
        }
        ModelName::Resnet18 => resnet(config, recomputes, Depth::Layers18, shape)?,
        ModelName::Resnet50 => resnet(config, recomputes, Depth::Layers50, shape)?,
        ModelName::Gpt2
        | ModelName::Bert
        | ModelName::Llama
        | ModelName::Switch
        | ModelName::Custom => {
            let message = format!(
                "{} reads tokens, and the data is images",
                config.name.as_str()
            );
            return Err(invalid("model.name", message).into());
        }
    }))
}

fn resnet(
    config: &ModelConfig,
    recomputes: bool,
    depth: Depth,
    shape: &ImageShape,
) -> Result<Classifier, TchError> {
    let network = |parameters: &mut Parameters| {
        let network = ResNet::new(parameters, depth, config, shape)?;
        Ok(network.recomputing(recomputes))
    };
    let classifier = Classifier::new(config.label_smoothing(), network)?;
    Ok(classifier.in_groups_of(config.ghost_batch().map_or(1, u64::from)))
}

fn of_tokens(
    config: &ModelConfig,
    recomputes: bool,
    shape: &TokenShape,
) -> Result<Box<dyn Task>, BuildError> {
    if config.name.reads_images() {
        let message = format!(
            "{} reads images, and the data is tokens",
            config.name.as_str()
        );
        return Err(invalid("model.name", message).into());
    }
    if shape.length > i64::from(config.context()) {
        let message = format!(
            "must be at least {}, the data's sequence length",
            shape.length
        );
        return Err(invalid("model.context", message).into());
    }
    if shape.vocabulary > i64::from(config.vocabulary()) {
        let message = format!(
            "must be at least {}, the tokens of the data",
            shape.vocabulary
        );
        return Err(invalid("model.vocabulary", message).into());
    }
    Ok(match config.name {
        ModelName::Bert => Box::new(Bert::new(config, shape.length)?.recomputing(recomputes)),
        ModelName::Llama => Box::new(Llama::new(config, shape.length)?.recomputing(recomputes)),
        _ => Box::new(Gpt2::new(config, shape.length)?.recomputing(recomputes)),
    })
}

fn invalid(field: &'static str, message: String) -> ConfigInvalid {
    ConfigInvalid { field, message }
}
