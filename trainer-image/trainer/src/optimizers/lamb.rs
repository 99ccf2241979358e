//! LAMB: Adam with a separate learning rate for each tensor, for large batches (You et al., 2020,
//! "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", Algorithm 2).

use roundhouse_contract::trainer::Optimizer as OptimizerConfig;
use tch::{TchError, Tensor};

use super::groups::Groups;
use super::kernels::{self, AdamStep, Select};
use super::zeros_like;
use crate::parameters::Parameters;
use crate::update::{Rate, Signals, Update};

/// `u = m̂ / (√v̂ + ε) + decay·w; w = w - rate · |w|/|u| · u`, with the bias-corrected moments of
/// Adam and φ the identity.
///
/// A tensor with a norm of 0 has a ratio of 1. Biases and parameters of normalization layers have a
/// ratio of 1 and no decay, unless `decayNormAndBias` is true.
#[derive(Debug)]
pub struct Lamb {
    beta1: f64,
    beta2: f64,
    epsilon: f64,
    weight_decay: f64,
    groups: Groups,
    first_moments: Vec<Tensor>,
    second_moments: Vec<Tensor>,
}

impl Lamb {
    /// Creates the optimizer with moments of zero.
    ///
    /// # Errors
    /// The moments exceed the memory.
    pub fn new(config: &OptimizerConfig, parameters: &Parameters) -> Result<Self, TchError> {
        Ok(Self {
            beta1: config.beta1,
            beta2: config.beta2,
            epsilon: config.epsilon,
            weight_decay: config.weight_decay,
            groups: Groups::new(parameters, config.decays_norm_and_bias()),
            first_moments: zeros_like(parameters)?,
            second_moments: zeros_like(parameters)?,
        })
    }
}

impl Update for Lamb {
    fn apply(
        &mut self,
        parameters: &mut Parameters,
        rate: Rate,
        Signals { skip, divisor }: Signals<'_>,
    ) -> Result<(), TchError> {
        let select = Select::new(skip)?;
        tch::no_grad(|| {
            for group in self.groups.weights() {
                let step = AdamStep {
                    rate: rate.learning_rate,
                    beta1: self.beta1,
                    beta2: self.beta2,
                    epsilon: self.epsilon,
                    weight_decay: group.decay(self.weight_decay),
                    step: rate.step,
                };
                let members = group.members(parameters)?;
                let weights = &members.weights;
                let (first, second) = (
                    group.select(&self.first_moments),
                    group.select(&self.second_moments),
                );
                let directions =
                    kernels::lamb_directions(&members, [&first, &second], &step, divisor, &select)?;
                let coefficients = if group.decays {
                    kernels::lamb_ratios(weights, &directions, step.rate)?
                } else {
                    kernels::same(-step.rate, weights)?
                };
                kernels::move_by(weights, directions, &coefficients, &select)?;
            }
            self.groups.update_statistics(parameters, &select)
        })
    }

    fn state(&self) -> Vec<(&'static str, &[Tensor])> {
        vec![
            ("first_moment", &self.first_moments),
            ("second_moment", &self.second_moments),
        ]
    }
}
