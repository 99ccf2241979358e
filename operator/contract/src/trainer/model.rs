//! Models of the built-in trainer.

use serde::{Deserialize, Serialize};

use super::{ConfigInvalid, invalid};

/// Which model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ModelName {
    /// Multi-layer perceptron over the flattened image, `ReLU` between layers.
    Mlp,
    /// 3×3 convolutions with `ReLU`, a 2×2 max-pool after each, and a linear layer.
    Cnn,
}

/// A model and its size. The number of classes comes from the data.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Model {
    /// `mlp` or `cnn`.
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

    pub(super) fn validate(&self) -> Result<(), ConfigInvalid> {
        match self.name {
            ModelName::Mlp if self.channels.is_some() => {
                invalid("model.channels", "is for a cnn; an mlp has hidden")
            }
            ModelName::Cnn if self.hidden.is_some() => {
                invalid("model.hidden", "is for an mlp; a cnn has channels")
            }
            ModelName::Mlp if sizes_invalid(self.hidden()) => invalid(
                "model.hidden",
                "needs at least one layer, and each at least one unit",
            ),
            ModelName::Cnn if sizes_invalid(self.channels()) => invalid(
                "model.channels",
                "needs at least one convolution, and each one channel",
            ),
            ModelName::Mlp | ModelName::Cnn => Ok(()),
        }
    }
}

fn sizes_invalid(sizes: &[u32]) -> bool {
    sizes.is_empty() || sizes.contains(&0)
}
