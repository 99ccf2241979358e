//! How the processes of a worker divide what each of them would hold otherwise.

use serde::{Deserialize, Serialize};

#[cfg(test)]
mod tests;
mod validate;

pub(super) use validate::validate;

/// How the processes of a worker divide the state. Then they are one replica: if one of them dies,
/// all of them restart, and another worker sends them the state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Parallel {
    /// The stage of `ZeRO` (Rajbhandari et al., 2020): what the processes of a worker shard. It
    /// needs the optimizer `sgd` or `adamw`, without `ema`. Default: nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shard: Option<Shard>,
    /// Number of processes over which the experts of each layer of a `switch` are spread (Lepikhin
    /// et al., 2020). It must be the number of processes of a worker and divide `numExperts`, and
    /// `shard` must be `Zero2` or `Zero3`. Default: the experts are sharded like all other weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 2, max = 64)))]
    pub expert: Option<u32>,
    /// Number of processes that compute the same samples, each with a part of most weights: tensor
    /// parallelism (Shoeybi et al., 2019), for `gpt2`, `bert` and `llama`. It must be the number of
    /// processes of a worker and divide the numbers of heads. It excludes `shard`, and needs the
    /// optimizer `sgd` or `adamw`, without `ema`. Default: each process computes other samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 2, max = 64)))]
    pub tensor: Option<u32>,
    /// Number of processes that compute the same samples one after the other, each with some of the
    /// layers (Huang et al., 2019), for `gpt2`, `bert` and `llama`. It must be the number of
    /// processes of a worker and at most the number of layers. Set `microBatchSize`: while a
    /// process computes some samples, the next one computes those before. It excludes `shard` and
    /// `tensor`, and needs the optimizer `sgd` or `adamw`, without `ema`. Default: each process has
    /// all layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 2, max = 64)))]
    pub pipeline: Option<u32>,
}

/// What the processes of a worker shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
pub enum Shard {
    /// The state of the optimizer.
    Zero1,
    /// The state of the optimizer, and the gradients.
    Zero2,
    /// The state of the optimizer, the gradients and the weights. Each block gathers its weights
    /// before it computes, and drops them afterwards.
    Zero3,
}

impl Shard {
    /// Whether the gradients are sharded, too.
    #[must_use]
    pub const fn shards_gradients(self) -> bool {
        match self {
            Self::Zero1 => false,
            Self::Zero2 | Self::Zero3 => true,
        }
    }
}

impl Parallel {
    /// Whether each process has a copy of the state.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Whether the processes of a worker together hold one copy of the state.
    #[must_use]
    pub const fn is_sharded(&self) -> bool {
        self.shard.is_some() || self.divides_layers()
    }

    /// Whether the processes of a worker divide layers or their computation, so that they compute
    /// the same samples.
    #[must_use]
    pub const fn divides_layers(&self) -> bool {
        self.tensor.is_some() || self.pipeline.is_some()
    }

    /// Whether each process has only a part of the weights or of their gradients.
    #[must_use]
    pub fn divides_weights(&self) -> bool {
        self.shards_gradients() || self.divides_layers()
    }

    /// Whether each process has the gradients of only a part of the weights.
    #[must_use]
    pub fn shards_gradients(&self) -> bool {
        self.shard.is_some_and(Shard::shards_gradients)
    }
}
