//! The values of a model's fields, with the defaults of missing ones.

use super::{BatchNorm, Model, ModelName, Stem};

/// Context and vocabulary of the published transformer; without effect for other models.
const fn published(name: ModelName) -> (u32, u32) {
    match name {
        ModelName::Bert => (512, 30_522),
        ModelName::Llama => (2048, 32_000),
        ModelName::Gpt2
        | ModelName::Switch
        | ModelName::Linear
        | ModelName::Mlp
        | ModelName::Cnn
        | ModelName::Resnet18
        | ModelName::Resnet50
        | ModelName::Custom => (1024, 50_257),
    }
}

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
            | ModelName::Llama
            | ModelName::Switch
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

    /// Number of heads of keys and values of each block.
    #[must_use]
    pub fn num_key_value_heads(&self) -> u32 {
        self.num_key_value_heads.unwrap_or_else(|| self.heads())
    }

    /// Number of elements of a token's vector.
    #[must_use]
    pub fn width(&self) -> u32 {
        self.width.unwrap_or(768)
    }

    /// Number of elements of the vectors inside the perceptron of a `llama`: by default the rule of
    /// Touvron et al. 2023.
    #[must_use]
    pub fn inner_width(&self) -> u32 {
        let eight_thirds = self.width().saturating_mul(8) / 3;
        self.inner_width
            .unwrap_or_else(|| eight_thirds.next_multiple_of(256))
    }

    /// Longest sequence in tokens: by default the published model's.
    #[must_use]
    pub fn context(&self) -> u32 {
        self.context.unwrap_or(published(self.name).0)
    }

    /// Number of different tokens: by default that of the published model's tokenizer.
    #[must_use]
    pub fn vocabulary(&self) -> u32 {
        self.vocabulary.unwrap_or(published(self.name).1)
    }

    /// Base of the wavelengths of rotary positions.
    #[must_use]
    pub fn rope_theta(&self) -> f64 {
        self.rope_theta.unwrap_or(10_000.0)
    }

    /// Constant that the normalizations of a `llama` add to the mean of squares.
    #[must_use]
    pub fn norm_epsilon(&self) -> f64 {
        self.norm_epsilon.unwrap_or(1e-5)
    }

    /// Whether a `llama` uses its embeddings of tokens for the scores, too.
    #[must_use]
    pub fn tie_embeddings(&self) -> bool {
        self.tie_embeddings.unwrap_or(false)
    }

    /// Number of experts of a `switch` in every second block; 0 for other models.
    #[must_use]
    pub fn num_experts(&self) -> u32 {
        if self.name == ModelName::Switch {
            self.num_experts.unwrap_or(8)
        } else {
            0
        }
    }

    /// Tokens that an expert takes, as a factor of its part of the sequence.
    #[must_use]
    pub fn capacity_factor(&self) -> f64 {
        self.capacity_factor.unwrap_or(1.25)
    }

    /// Factor of the loss that balances the experts.
    #[must_use]
    pub fn router_aux_loss_coef(&self) -> f64 {
        self.router_aux_loss_coef.unwrap_or(0.01)
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
