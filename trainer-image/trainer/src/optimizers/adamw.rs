//! Adam with decoupled weight decay (Loshchilov and Hutter, 2019), as `torch.optim.AdamW`.

use roundhouse_contract::trainer::Optimizer as OptimizerConfig;
use tch::{TchError, Tensor};

use super::groups::Groups;
use super::kernels::{self, AdamStep, Select};
use super::zeros_like;
use crate::parameters::Parameters;
use crate::update::{Rate, Signals, Update};

/// `w = w·(1 - rate·decay); m = β₁·m + (1-β₁)·g; v = β₂·v + (1-β₂)·g²; w = w - rate · m̂ / (√v̂ +
/// ε)` with the bias-corrected `m̂ = m/(1-β₁ᵗ)`, `v̂ = v/(1-β₂ᵗ)`.
#[derive(Debug)]
pub struct AdamW {
    beta1: f64,
    beta2: f64,
    epsilon: f64,
    weight_decay: f64,
    groups: Groups,
    first_moments: Vec<Tensor>,
    second_moments: Vec<Tensor>,
}

impl AdamW {
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

impl Update for AdamW {
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
                let (first, second) = (
                    group.select(&self.first_moments),
                    group.select(&self.second_moments),
                );
                kernels::adamw(&members, [&first, &second], &step, divisor, &select)?;
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
