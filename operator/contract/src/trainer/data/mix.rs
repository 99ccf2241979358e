//! A mix of training splits, each with a weight.

use serde::{Deserialize, Serialize};

use super::no_climbing;
use crate::trainer::{ConfigInvalid, invalid};

/// One of several training splits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Part {
    /// Directory or file, below `path`.
    #[cfg_attr(feature = "schemars", schemars(length(min = 1, max = 1024)))]
    pub train: String,
    /// Share of the split in each epoch, relative to the other weights.
    #[cfg_attr(
        feature = "schemars",
        schemars(range(min = 0.000_001, max = 1_000_000.0))
    )]
    pub weight: f64,
}

pub(super) fn validate(mix: &[Part]) -> Result<(), ConfigInvalid> {
    if mix.len() > 64 {
        return invalid("data.mix", "give at most 64 parts");
    }
    for Part { train, weight } in mix {
        no_climbing("data.mix.train", Some(train))?;
        if train.is_empty() {
            return invalid("data.mix.train", "name a directory or file");
        }
        if !(1e-6..=1e6).contains(weight) {
            return invalid("data.mix.weight", "must be between 0.000001 and 1000000");
        }
    }
    Ok(())
}
