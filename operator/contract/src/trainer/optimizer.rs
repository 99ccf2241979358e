//! An optimizer and its hyperparameters.

use serde::{Deserialize, Serialize};

use super::{ConfigInvalid, invalid};

pub mod schedule;
#[cfg(test)]
mod tests;

pub use schedule::{BatchGrowth, DecayShape, Schedule, ScheduleName};

crate::closed_enum! {
    /// Name of an optimizer.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
    #[serde(rename_all = "lowercase")]
    pub enum OptimizerName {
        /// Stochastic gradient descent with momentum.
        #[default]
        Sgd,
        /// Adam with decoupled weight decay (Loshchilov and Hutter, 2019).
        Adamw,
        /// SGD with a separate learning rate for each tensor, for large batches of images
        /// (You et al., 2017).
        Lars,
        /// Adam with a separate learning rate for each tensor, for large batches of text
        /// (You et al., 2020).
        Lamb,
    }
}

impl OptimizerName {
    /// The name as in a configuration.
    const fn text(self) -> &'static str {
        match self {
            Self::Sgd => "sgd",
            Self::Adamw => "adamw",
            Self::Lars => "lars",
            Self::Lamb => "lamb",
        }
    }
}

/// An optimizer and its parameters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Optimizer {
    /// Name of the optimizer: `sgd`, `adamw`, `lars` or `lamb`. A field that belongs only to other
    /// optimizers must be left out or have its default.
    pub name: OptimizerName,
    /// Learning rate after warm-up.
    #[cfg_attr(feature = "schemars", schemars(range(min = 0)))]
    pub learning_rate: f64,
    /// Momentum of `sgd` and `lars`.
    #[cfg_attr(feature = "schemars", schemars(range(min = 0, max = 1)))]
    pub momentum: f64,
    /// Whether `sgd` uses Nesterov momentum. Needs a momentum above 0.
    pub nesterov: bool,
    /// Weight decay: added to the gradient by `sgd` and `lars`, decoupled in `adamw` and `lamb`.
    #[cfg_attr(feature = "schemars", schemars(range(min = 0)))]
    pub weight_decay: f64,
    /// Whether weight decay, and the rate per tensor of `lars` and `lamb`, also apply to biases and
    /// to the parameters of normalization layers: to all tensors of at most one dimension. Default:
    /// true for `sgd` and `adamw`, as in PyTorch; false for `lars` and `lamb`, as in their
    /// published recipes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decay_norm_and_bias: Option<bool>,
    /// Decay of the first moment of `adamw` and `lamb`.
    #[cfg_attr(feature = "schemars", schemars(range(min = 0, max = 1)))]
    pub beta1: f64,
    /// Decay of the second moment of `adamw` and `lamb`.
    #[cfg_attr(feature = "schemars", schemars(range(min = 0, max = 1)))]
    pub beta2: f64,
    /// Added to the denominator of `adamw` and `lamb`.
    #[cfg_attr(feature = "schemars", schemars(range(min = 0)))]
    pub epsilon: f64,
    /// Trust coefficient of `lars`: how far one step may move a tensor, as a fraction of the
    /// tensor's norm.
    #[cfg_attr(feature = "schemars", schemars(range(min = 0)))]
    pub trust_coefficient: f64,
    /// Largest norm of all gradients taken as one vector. A larger gradient is scaled down to it.
    /// Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schemars", schemars(range(min = 0)))]
    pub max_grad_norm: Option<f64>,
    /// Keeps an exponential moving average of the weights. Default: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ema: Option<Ema>,
}

/// An exponential moving average of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Ema {
    /// Weight of the old average in each step: `average = decay * average + (1 - decay) * weights`.
    #[cfg_attr(feature = "schemars", schemars(range(min = 0, max = 1)))]
    pub decay: f64,
}

impl Default for Optimizer {
    fn default() -> Self {
        Self {
            name: OptimizerName::Sgd,
            learning_rate: 0.1,
            momentum: 0.9,
            nesterov: false,
            weight_decay: 0.0,
            decay_norm_and_bias: None,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            trust_coefficient: 0.001,
            max_grad_norm: None,
            ema: None,
        }
    }
}

impl Optimizer {
    /// Whether weight decay and rates per tensor apply to biases and
    /// parameters of normalization layers.
    #[must_use]
    pub fn decays_norm_and_bias(&self) -> bool {
        self.decay_norm_and_bias.unwrap_or(match self.name {
            OptimizerName::Sgd | OptimizerName::Adamw => true,
            OptimizerName::Lars | OptimizerName::Lamb => false,
        })
    }

    pub(super) fn validate(&self) -> Result<(), ConfigInvalid> {
        let Self {
            name: _,
            learning_rate,
            momentum,
            nesterov,
            weight_decay,
            decay_norm_and_bias: _,
            beta1,
            beta2,
            epsilon,
            trust_coefficient,
            max_grad_norm,
            ema,
        } = self;
        let above_0 = |field, value: f64| {
            if value.is_finite() && value > 0.0 {
                return Ok(());
            }
            invalid(field, "must be a finite number above 0")
        };
        let below_1 = |field, value: f64| {
            if (0.0..1.0).contains(&value) {
                return Ok(());
            }
            invalid(field, "must be at least 0 and below 1")
        };
        above_0("optimizer.learningRate", *learning_rate)?;
        below_1("optimizer.momentum", *momentum)?;
        if *nesterov && *momentum <= 0.0 {
            return invalid(
                "optimizer.nesterov",
                "needs momentum: set optimizer.momentum above 0, for example to 0.9",
            );
        }
        if !(weight_decay.is_finite() && *weight_decay >= 0.0) {
            return invalid(
                "optimizer.weightDecay",
                "must be a finite number, 0 or above",
            );
        }
        below_1("optimizer.beta1", *beta1)?;
        below_1("optimizer.beta2", *beta2)?;
        above_0("optimizer.epsilon", *epsilon)?;
        above_0("optimizer.trustCoefficient", *trust_coefficient)?;
        if let Some(max_grad_norm) = max_grad_norm {
            above_0("optimizer.maxGradNorm", *max_grad_norm)?;
        }
        if let Some(Ema { decay }) = ema {
            below_1("optimizer.ema.decay", *decay)?;
        }
        self.refuse_fields_of_others()
    }

    /// Refuses a field that the optimizer does not have. The API server stores the defaults of all
    /// fields, so a field with its default counts as left out.
    fn refuse_fields_of_others(&self) -> Result<(), ConfigInvalid> {
        use OptimizerName::{Adamw, Lamb, Lars, Sgd};
        let Self {
            name,
            learning_rate: _,
            momentum,
            nesterov,
            weight_decay: _,
            decay_norm_and_bias: _,
            beta1,
            beta2,
            epsilon,
            trust_coefficient,
            max_grad_norm: _,
            ema: _,
        } = self;
        let plain = Self::default();
        let is_given = |value: f64, default: f64| value.to_bits() != default.to_bits();
        let all: [(_, _, &[OptimizerName]); 6] = [
            (
                "optimizer.momentum",
                is_given(*momentum, plain.momentum),
                &[Sgd, Lars],
            ),
            ("optimizer.nesterov", *nesterov, &[Sgd]),
            (
                "optimizer.beta1",
                is_given(*beta1, plain.beta1),
                &[Adamw, Lamb],
            ),
            (
                "optimizer.beta2",
                is_given(*beta2, plain.beta2),
                &[Adamw, Lamb],
            ),
            (
                "optimizer.epsilon",
                is_given(*epsilon, plain.epsilon),
                &[Adamw, Lamb],
            ),
            (
                "optimizer.trustCoefficient",
                is_given(*trust_coefficient, plain.trust_coefficient),
                &[Lars],
            ),
        ];
        for (field, is_given, owners) in all {
            if is_given && !owners.contains(name) {
                let owners: Vec<&str> = owners.iter().copied().map(OptimizerName::text).collect();
                let (both, either) = (owners.join(" and "), owners.join(" or "));
                return invalid(
                    field,
                    format!("is for {both}: remove it, or set optimizer.name to {either}"),
                );
            }
        }
        Ok(())
    }
}
