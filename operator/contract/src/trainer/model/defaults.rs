//! The values of a model's fields, with the defaults of missing ones.

use super::{BatchNorm, Model, ModelName, Stem};

impl Model {
    /// Units of each hidden layer of an `mlp`.
    #[must_use]
    pub fn hidden(&self) -> &[u32] {
        self.hidden.as_deref().unwrap_or(&[128, 64])
    }

    /// Channels of each convolution of a `cnn`.
    #[must_use]
    pub fn channels(&self) -> &[u32] {
        self.channels.as_deref().unwrap_or(&[16, 32])
    }

    /// First layers of a residual network.
    #[must_use]
    pub fn stem(&self) -> Stem {
        self.stem.unwrap_or_default()
    }

    /// Images over which a batch normalization computes its statistics; `None` if the model
    /// has no batch normalization.
    #[must_use]
    pub fn batch_norm(&self) -> Option<BatchNorm> {
        let given = match (self.batch_norm, self.ghost_batch) {
            (None, Some(0)) => BatchNorm::PerRank,
            (None, _) => BatchNorm::Ghost,
            (Some(given), _) => given,
        };
        match self.name {
            ModelName::Resnet18 | ModelName::Resnet50 => Some(given),
            ModelName::Linear
            | ModelName::Mlp
            | ModelName::Cnn
            | ModelName::Gpt2
            | ModelName::Bert
            | ModelName::Custom => None,
        }
    }

    /// Number of images per group of a batch normalization; `None` if it has no groups.
    #[must_use]
    pub fn ghost_batch(&self) -> Option<u32> {
        let has_groups = self.batch_norm() == Some(BatchNorm::Ghost);
        has_groups.then(|| self.ghost_batch.unwrap_or(32))
    }

    /// Whether residual blocks start as the identity.
    #[must_use]
    pub fn zero_init_residual(&self) -> bool {
        self.zero_init_residual.unwrap_or(false)
    }

    /// Number of blocks of a transformer.
    #[must_use]
    pub fn layers(&self) -> u32 {
        self.layers.unwrap_or(12)
    }

    /// Number of attention heads of each block.
    #[must_use]
    pub fn heads(&self) -> u32 {
        self.heads.unwrap_or(12)
    }

    /// Number of elements of a token's vector.
    #[must_use]
    pub fn width(&self) -> u32 {
        self.width.unwrap_or(768)
    }

    /// Longest sequence in tokens: by default the published model's.
    #[must_use]
    pub fn context(&self) -> u32 {
        let default = if self.name == ModelName::Bert {
            512
        } else {
            1024
        };
        self.context.unwrap_or(default)
    }

    /// Number of different tokens: by default that of the published model's tokenizer.
    #[must_use]
    pub fn vocabulary(&self) -> u32 {
        let default = if self.name == ModelName::Bert {
            30_522
        } else {
            50_257
        };
        self.vocabulary.unwrap_or(default)
    }

    /// Probability that training drops a value.
    #[must_use]
    pub fn dropout(&self) -> f64 {
        self.dropout.unwrap_or(0.0)
    }

    /// Part of a target's probability that training distributes over all classes.
    #[must_use]
    pub fn label_smoothing(&self) -> f64 {
        self.label_smoothing.unwrap_or(0.0)
    }
}
