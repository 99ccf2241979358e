//! Models and their sizes: the built-in models, and a model of the user's own.

use serde::{Deserialize, Serialize};

use super::{ConfigInvalid, TrainerConfig};

mod defaults;
mod init_from;
#[cfg(test)]
mod tests;
mod validate;

pub use init_from::InitFrom;

/// Name of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ModelName {
    /// Softmax regression: one linear layer over the flattened image.
    Linear,
    /// Multi-layer perceptron over the flattened image, `ReLU` between layers.
    Mlp,
    /// 3×3 convolutions with `ReLU`, a 2×2 max-pool after each, and a linear layer.
    Cnn,
    /// Residual network with 18 layers (He et al. 2015).
    Resnet18,
    /// Residual network with 50 layers, version 1.5: the 3×3 convolution of a block has the stride.
    Resnet50,
    /// Decoder-only transformer (Radford et al. 2019), trained to predict the next token.
    Gpt2,
    /// Encoder-only transformer (Devlin et al. 2018), trained to predict masked tokens.
    Bert,
    /// Decoder-only transformer with rotary positions (Touvron et al. 2023), trained to predict the
    /// next token.
    Llama,
    /// A `gpt2` in which a mixture of experts replaces the perceptron of every second block (Fedus
    /// et al. 2021).
    Switch,
    /// A model of your own, with settings in `trainer.options`: the container `trainer` needs an
    /// image with your program.
    Custom,
}

/// Variant of the first layers of a residual network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Stem {
    /// A 7×7 convolution with stride 2 and a 3×3 max-pool with stride 2, for images of about
    /// 224×224.
    #[default]
    Imagenet,
    /// A 3×3 convolution with stride 1 and no pool, for images of about 32×32.
    Cifar,
}

/// Images over which a batch normalization computes its mean and variance in a training step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub enum BatchNorm {
    /// Fixed groups of `ghostBatch` places of the global batch. The number of workers does
    /// not affect the result.
    Ghost,
    /// All images of the global batch, with sums over all processes. The result does not depend on
    /// the number of workers, up to the rounding of these sums: their order depends on the number
    /// of processes, as for gradients. Every normalization waits for all processes.
    Sync,
    /// The images of one pass of one process. The result depends on the number of processes and on
    /// `microBatchSize`.
    PerRank,
}

/// A model and its size. The number of classes comes from the data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Model {
    /// Name of the model: `linear`, `mlp`, `cnn`, `resnet18`, `resnet50`, `gpt2`, `bert`,
    /// `llama` or `switch`; `custom` for a model of your own.
    pub name: ModelName,
    /// Units of each hidden layer of an `mlp`. Default: 128, 64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schemars",
        schemars(length(min = 1, max = 64), inner(range(min = 1, max = 65_536)))
    )]
    pub hidden: Option<Vec<u32>>,
    /// Channels of each convolution of a `cnn`. Default: 16, 32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schemars",
        schemars(length(min = 1, max = 16), inner(range(min = 1, max = 4_096)))
    )]
    pub channels: Option<Vec<u32>>,
    /// First layers of a `resnet18` or `resnet50`: `imagenet` or `cifar`. Default: `imagenet`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stem: Option<Stem>,
    /// Images over which a batch normalization of a residual network computes its mean and
    /// variance. `Ghost`: fixed groups of `ghostBatch` images, independent of the number of
    /// workers. `Sync`: the whole global batch, summed over all processes; equal for every number
    /// of workers up to rounding. It needs the global batch in one pass, so without
    /// `trainer.microBatchSize` and `trainer.slices`. `PerRank`: the images of one pass of one
    /// process, so that the result depends on the number of workers. Default: `Ghost`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch_norm: Option<BatchNorm>,
    /// Number of images in a group of `batchNorm: Ghost`: the places of the global batch form
    /// groups of this size. 0 is an older way to write `batchNorm: PerRank`. Default: 32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 0, max = 65_536)))]
    pub ghost_batch: Option<u32>,
    /// Whether the last batch normalization of each residual block starts with a weight of 0 (Goyal
    /// et al. 2017). Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zero_init_residual: Option<bool>,
    /// Number of blocks of a `gpt2`, `bert`, `llama` or `switch`. Default: 12.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 256)))]
    pub layers: Option<u32>,
    /// Attention heads of each block; they divide `width`. For `llama` `width` / `heads` is even.
    /// Default: 12.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 256)))]
    pub heads: Option<u32>,
    /// Heads of keys and values in each block of a `llama`; they divide `heads`. Each of them
    /// serves `heads` / `numKeyValueHeads` heads of queries (Ainslie et al. 2023). Default:
    /// `heads`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 256)))]
    pub num_key_value_heads: Option<u32>,
    /// Size of a token's vector. Default: 768.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 65_536)))]
    pub width: Option<u32>,
    /// Size of the vectors inside the perceptron of each block of a `llama`. Default: 8/3 of
    /// `width`, rounded up to a multiple of 256.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 1_048_576)))]
    pub inner_width: Option<u32>,
    /// Longest sequence in tokens. Default: 1024 for `gpt2` and `switch`, 512 for `bert`,
    /// 2048 for `llama`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 1_048_576)))]
    pub context: Option<u32>,
    /// Number of different tokens. Default: 50257 for `gpt2` and `switch`, 30522 for `bert`, 32000
    /// for `llama`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 2, max = 16_777_216)))]
    pub vocabulary: Option<u32>,
    /// Base of the wavelengths of the rotary positions of a `llama` (Su et al. 2021). Default:
    /// 10000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1.0, max = 1e9)))]
    pub rope_theta: Option<f64>,
    /// Constant that each normalization of a `llama` adds to the mean of squares. Default: 0.00001.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 1e-12, max = 0.1)))]
    pub norm_epsilon: Option<f64>,
    /// Whether a `llama` uses its embeddings of tokens for the scores, too, instead of weights of
    /// their own. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tie_embeddings: Option<bool>,
    /// Number of experts in every second block of a `switch`. An expert is a perceptron, and each
    /// token passes through one of them. Default: 8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 2, max = 512)))]
    pub num_experts: Option<u32>,
    /// An expert of a `switch` takes at most `capacityFactor` · T / `numExperts` (rounded up) of
    /// the T tokens of a sequence. Later tokens skip the expert. Default: 1.25.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 0.1, max = 512.0)))]
    pub capacity_factor: Option<f64>,
    /// Factor of the loss that balances the experts of a `switch`, per block with experts. Default:
    /// 0.01.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 0.0, max = 10.0)))]
    pub router_aux_loss_coef: Option<f64>,
    /// Probability that training drops a value of a `gpt2`, `bert` or `switch`, or an attention
    /// weight of a `llama`, at least 0 and below 1. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 0.0, max = 0.99)))]
    pub dropout: Option<f64>,
    /// Part of a target's probability that training distributes evenly over all classes, at least 0
    /// and below 1. Default: 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 0.0, max = 0.99)))]
    pub label_smoothing: Option<f64>,
    /// File with the initial weights, for fine-tuning. Default: random weights, a function of the
    /// seed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init_from: Option<InitFrom>,
}

impl ModelName {
    /// Whether the inputs of a built-in model are images.
    #[must_use]
    pub const fn reads_images(self) -> bool {
        match self {
            Self::Linear | Self::Mlp | Self::Cnn | Self::Resnet18 | Self::Resnet50 => true,
            Self::Gpt2 | Self::Bert | Self::Llama | Self::Switch | Self::Custom => false,
        }
    }

    /// The name as in a configuration.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Linear => "linear",
            Self::Mlp => "mlp",
            Self::Cnn => "cnn",
            Self::Resnet18 => "resnet18",
            Self::Resnet50 => "resnet50",
            Self::Gpt2 => "gpt2",
            Self::Bert => "bert",
            Self::Llama => "llama",
            Self::Switch => "switch",
            Self::Custom => "custom",
        }
    }
}

impl Model {
    /// The minimal configuration of a model: all its fields have their defaults.
    #[must_use]
    pub const fn new(name: ModelName) -> Self {
        Self {
            name,
            hidden: None,
            channels: None,
            stem: None,
            batch_norm: None,
            ghost_batch: None,
            zero_init_residual: None,
            layers: None,
            heads: None,
            num_key_value_heads: None,
            width: None,
            inner_width: None,
            context: None,
            vocabulary: None,
            rope_theta: None,
            norm_epsilon: None,
            tie_embeddings: None,
            num_experts: None,
            capacity_factor: None,
            router_aux_loss_coef: None,
            dropout: None,
            label_smoothing: None,
            init_from: None,
        }
    }

    /// Refuses settings that divide a step into passes if the model needs one pass.
    pub(super) fn validate_passes(config: &TrainerConfig) -> Result<(), ConfigInvalid> {
        validate::passes(config)
    }

    pub(super) fn validate(&self) -> Result<(), ConfigInvalid> {
        validate::fields_belong_to_the_model(self)?;
        validate::groups(self)?;
        validate::sizes(self)?;
        self.init_from.as_ref().map_or(Ok(()), InitFrom::validate)
    }
}
