//! LARS: SGD with momentum and a separate learning rate for each tensor, for large batches (You,
//! Gitman and Ginsburg, 2017, "Large Batch Training of Convolutional Networks", Algorithm 1).

use roundhouse_contract::trainer::Optimizer as OptimizerConfig;
use tch::{TchError, Tensor};

use super::groups::Groups;
use super::kernels::{self, Select, SgdStep};
use super::zeros_like;
use crate::parameters::Parameters;
use crate::update::{Rate, Signals, Update};

/// `λ = η·|w| / (|g| + decay·|w|); v = momentum·v + rate·λ·(g + decay·w); w = w - v`.
///
/// The learning rate is inside the buffer, as in the paper; in `torch.optim.SGD` it is outside. A
/// tensor with a norm of 0 has λ = 1. Biases and parameters of normalization layers have λ = 1 and
/// no decay, unless `decayNormAndBias` is true.
#[derive(Debug)]
pub struct Lars {
    momentum: f64,
    weight_decay: f64,
    trust_coefficient: f64,
    groups: Groups,
    buffers: Vec<Tensor>,
}

impl Lars {
    /// Creates the optimizer with buffers of zero.
    ///
    /// # Errors
    /// The buffers exceed the memory.
    pub fn new(config: &OptimizerConfig, parameters: &Parameters) -> Result<Self, TchError> {
        Ok(Self {
            momentum: config.momentum,
            weight_decay: config.weight_decay,
            trust_coefficient: config.trust_coefficient,
            groups: Groups::new(parameters, config.decays_norm_and_bias()),
            buffers: zeros_like(parameters)?,
        })
    }
}

impl Update for Lars {
    fn apply(
        &mut self,
        parameters: &mut Parameters,
        rate: Rate,
        Signals { skip, divisor }: Signals<'_>,
    ) -> Result<(), TchError> {
        let select = Select::new(skip)?;
        tch::no_grad(|| {
            for group in self.groups.weights() {
                let step = SgdStep {
                    rate: rate.learning_rate,
                    momentum: self.momentum,
                    nesterov: false,
                    weight_decay: group.decay(self.weight_decay),
                };
                let members = group.members(parameters)?.divided(divisor)?;
                let rates = if group.decays {
                    kernels::lars_ratios(
                        &members.weights,
                        &members.gradients,
                        self.trust_coefficient,
                        self.weight_decay,
                        step.rate,
                    )?
                } else {
                    kernels::same(step.rate, &members.weights)?
                };
                let buffers = group.select(&self.buffers);
                kernels::lars_momentum(&members, &buffers, &rates, &step, &select)?;
            }
            self.groups.update_statistics(parameters, &select)
        })
    }

    fn state(&self) -> Vec<(&'static str, &[Tensor])> {
        vec![("momentum", &self.buffers)]
    }
}
