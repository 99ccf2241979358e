//! Schedules of the learning rate and the batch size.

use serde::{Deserialize, Serialize};

use super::{ConfigInvalid, invalid};

/// Name of a schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ScheduleName {
    /// A constant learning rate.
    #[default]
    Constant,
    /// Linear decay from the rate to `minFactor` of it.
    Linear,
    /// Cosine decay from the rate to `minFactor` of it (Loshchilov and Hutter, 2017).
    Cosine,
    /// Multiplication by `gamma` after every `stepEpochs` epochs.
    Step,
    /// Polynomial decay `(1 - progress)^power`, from the rate to `minFactor` of it.
    Polynomial,
    /// Warm-up, stable, decay: the full rate, which decays to `minFactor` of it over the last
    /// `decayFraction` of training (Hu et al., 2024).
    Wsd,
}

/// How the rate of `wsd` decays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum DecayShape {
    /// Linear decay: `1 - progress`.
    #[default]
    Linear,
    /// Square-root decay: `1 - √progress` (Hägele et al., 2024).
    Sqrt,
}

/// Growth of the batch in place of a decay of the rate (Smith et al., 2018, "Don't Decay the
/// Learning Rate, Increase the Batch Size").
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BatchGrowth {
    /// Numbers of completed epochs after which the batch grows, in ascending order.
    #[cfg_attr(
        feature = "schemars",
        schemars(length(min = 1, max = 16), inner(range(min = 1, max = 1_000_000)))
    )]
    pub at_epochs: Vec<u32>,
    /// Factor by which the batch grows each time. The result is rounded, and at most the whole data
    /// set.
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 1_000)))]
    pub factor: f64,
}

impl BatchGrowth {
    /// Most entries of `at_epochs`.
    pub const MAX_STAGES: usize = 16;
}

/// Learning rate and batch size over time. The position is counted in committed samples, so it does
/// not depend on the number of workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Schedule {
    /// `constant`, `linear`, `cosine`, `step`, `polynomial` or `wsd`.
    pub name: ScheduleName,
    /// Steps over which the rate rises linearly to its full value.
    #[cfg_attr(feature = "schemars", schemars(range(min = 0, max = 1_000_000_000)))]
    pub warmup_steps: u32,
    /// Lowest rate of `linear`, `cosine`, `polynomial` and `wsd`, as a fraction of the full rate.
    #[cfg_attr(feature = "schemars", schemars(range(min = 0, max = 1)))]
    pub min_factor: f64,
    /// Epochs between two drops of `step`.
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 1_000_000)))]
    pub step_epochs: u32,
    /// Factor of each drop of `step`.
    #[cfg_attr(feature = "schemars", schemars(range(min = 0, max = 1)))]
    pub gamma: f64,
    /// Exponent of the schedule `polynomial`.
    #[cfg_attr(feature = "schemars", schemars(range(min = 0, max = 100)))]
    pub power: f64,
    /// Fraction of all samples, at the end of training, over which the rate of `wsd` decays.
    #[cfg_attr(feature = "schemars", schemars(range(min = 0, max = 1)))]
    pub decay_fraction: f64,
    /// How the rate of `wsd` decays: `linear` or `sqrt`, which is 1 - √progress.
    pub decay_shape: DecayShape,
    /// Growth of the batch at some epochs. It does not change the learning rate. Default:
    /// the batch is constant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batch_growth: Option<BatchGrowth>,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            name: ScheduleName::Constant,
            warmup_steps: 0,
            min_factor: 0.0,
            step_epochs: 30,
            gamma: 0.1,
            power: 1.0,
            decay_fraction: 0.1,
            decay_shape: DecayShape::Linear,
            batch_growth: None,
        }
    }
}

impl Schedule {
    pub(in crate::trainer) fn validate(&self) -> Result<(), ConfigInvalid> {
        let Self {
            name: _,
            warmup_steps: _,
            min_factor,
            step_epochs,
            gamma,
            power,
            decay_fraction,
            decay_shape: _,
            batch_growth,
        } = self;
        let unit = |value: f64| (0.0..=1.0).contains(&value);
        if !unit(*min_factor) {
            return invalid("schedule.minFactor", "must be between 0 and 1");
        }
        if *step_epochs == 0 {
            return invalid("schedule.stepEpochs", "must be at least 1");
        }
        if !(unit(*gamma) && *gamma > 0.0) {
            return invalid("schedule.gamma", "must be above 0 and at most 1");
        }
        if !(*power > 0.0 && *power <= 100.0) {
            return invalid("schedule.power", "must be above 0 and at most 100");
        }
        if !(unit(*decay_fraction) && *decay_fraction > 0.0) {
            return invalid("schedule.decayFraction", "must be above 0 and at most 1");
        }
        batch_growth.as_ref().map_or(Ok(()), BatchGrowth::validate)
    }
}

impl BatchGrowth {
    fn validate(&self) -> Result<(), ConfigInvalid> {
        let Self { at_epochs, factor } = self;
        if at_epochs.is_empty() || at_epochs.len() > Self::MAX_STAGES {
            return invalid(
                "schedule.batchGrowth.atEpochs",
                format!("give 1 to {} epochs", Self::MAX_STAGES),
            );
        }
        if at_epochs[0] == 0 {
            return invalid(
                "schedule.batchGrowth.atEpochs",
                "must be at least 1: set globalBatchSize to the batch of the first epoch",
            );
        }
        if !at_epochs.is_sorted_by(|left, right| left < right) {
            return invalid(
                "schedule.batchGrowth.atEpochs",
                "give each epoch once, in ascending order",
            );
        }
        if !(*factor > 1.0 && *factor <= 1_000.0) {
            return invalid(
                "schedule.batchGrowth.factor",
                "must be above 1 and at most 1000",
            );
        }
        Ok(())
    }
}
