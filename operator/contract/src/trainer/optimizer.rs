//! Optimizers and learning-rate schedules.

use serde::{Deserialize, Serialize};

use super::{ConfigInvalid, invalid};

/// Which optimizer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum OptimizerName {
    /// Stochastic gradient descent with momentum.
    #[default]
    Sgd,
    /// Adam with decoupled weight decay (Loshchilov and Hutter, 2019).
    Adamw,
}

/// An optimizer and its parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Optimizer {
    /// `sgd` or `adamw`.
    pub name: OptimizerName,
    /// Learning rate after warm-up.
    #[cfg_attr(feature = "schemars", schemars(range(min = 0)))]
    pub learning_rate: f64,
    /// Momentum of `sgd`.
    #[cfg_attr(feature = "schemars", schemars(range(min = 0, max = 1)))]
    pub momentum: f64,
    /// Weight decay: added to the gradient by `sgd`, decoupled in `adamw`.
    #[cfg_attr(feature = "schemars", schemars(range(min = 0)))]
    pub weight_decay: f64,
    /// Decay of the first moment of `adamw`.
    #[cfg_attr(feature = "schemars", schemars(range(min = 0, max = 1)))]
    pub beta1: f64,
    /// Decay of the second moment of `adamw`.
    #[cfg_attr(feature = "schemars", schemars(range(min = 0, max = 1)))]
    pub beta2: f64,
    /// Added to the denominator of `adamw`.
    #[cfg_attr(feature = "schemars", schemars(range(min = 0)))]
    pub epsilon: f64,
}

impl Default for Optimizer {
    fn default() -> Self {
        Self {
            name: OptimizerName::Sgd,
            learning_rate: 0.1,
            momentum: 0.9,
            weight_decay: 0.0,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
        }
    }
}

impl Optimizer {
    pub(super) fn validate(&self) -> Result<(), ConfigInvalid> {
        let Self {
            name: _,
            learning_rate,
            momentum,
            weight_decay,
            beta1,
            beta2,
            epsilon,
        } = self;
        let positive = |value: f64| value.is_finite() && value > 0.0;
        let fraction = |value: f64| (0.0..1.0).contains(&value);
        if !positive(*learning_rate) {
            return invalid("optimizer.learningRate", "must be a finite number above 0");
        }
        if !fraction(*momentum) {
            return invalid("optimizer.momentum", "must be at least 0 and below 1");
        }
        if !(weight_decay.is_finite() && *weight_decay >= 0.0) {
            return invalid(
                "optimizer.weightDecay",
                "must be a finite number, 0 or above",
            );
        }
        if !fraction(*beta1) || !fraction(*beta2) {
            return invalid(
                "optimizer.beta1",
                "beta1 and beta2 must be at least 0 and below 1",
            );
        }
        if !positive(*epsilon) {
            return invalid("optimizer.epsilon", "must be a finite number above 0");
        }
        Ok(())
    }
}

/// Which schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum ScheduleName {
    /// The same rate all the time.
    #[default]
    Constant,
    /// Half a cosine from the rate down to `minFactor` of it (Loshchilov and Hutter, 2017).
    Cosine,
    /// Times `gamma` after every `stepEpochs` epochs.
    Step,
}

/// Learning rate over time. Position is counted in committed samples, so that a change in the
/// number of workers is not noticed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Schedule {
    /// `constant`, `cosine` or `step`.
    pub name: ScheduleName,
    /// Steps over which the rate rises linearly to its full value.
    #[cfg_attr(feature = "schemars", schemars(range(min = 0, max = 1_000_000_000)))]
    pub warmup_steps: u32,
    /// Lowest rate of `cosine`, as a fraction of the full rate.
    #[cfg_attr(feature = "schemars", schemars(range(min = 0, max = 1)))]
    pub min_factor: f64,
    /// Epochs between two drops of `step`.
    #[cfg_attr(feature = "schemars", schemars(range(min = 1, max = 1_000_000)))]
    pub step_epochs: u32,
    /// Factor of each drop of `step`.
    #[cfg_attr(feature = "schemars", schemars(range(min = 0, max = 1)))]
    pub gamma: f64,
}

impl Default for Schedule {
    fn default() -> Self {
        Self {
            name: ScheduleName::Constant,
            warmup_steps: 0,
            min_factor: 0.0,
            step_epochs: 30,
            gamma: 0.1,
        }
    }
}

impl Schedule {
    pub(super) fn validate(&self) -> Result<(), ConfigInvalid> {
        let unit = |value: f64| (0.0..=1.0).contains(&value);
        if !unit(self.min_factor) {
            return invalid("schedule.minFactor", "must be between 0 and 1");
        }
        if self.step_epochs == 0 {
            return invalid("schedule.stepEpochs", "must be at least 1");
        }
        if !(unit(self.gamma) && self.gamma > 0.0) {
            return invalid("schedule.gamma", "must be above 0 and at most 1");
        }
        Ok(())
    }
}
