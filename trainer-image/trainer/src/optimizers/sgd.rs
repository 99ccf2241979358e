//! Stochastic gradient descent with momentum, as `torch.optim.SGD`: weight decay is added to the
//! gradient, the momentum buffer is a plain sum, and the learning rate multiplies the buffer.

use roundhouse_contract::trainer::Optimizer as OptimizerConfig;
use tch::{TchError, Tensor};

use super::groups::Groups;
use super::kernels::{self, Select, SgdStep};
use super::zeros_like;
use crate::parameters::Parameters;
use crate::update::{Rate, Signals, Update};

/// `d = gradient + decay·w; b = momentum·b + d; w = w - rate·b`; with Nesterov momentum (Sutskever
/// et al., 2013, as `PyTorch` writes it) `w = w - rate·(d + momentum·b)`.
#[derive(Debug)]
pub struct Sgd {
    momentum: f64,
    nesterov: bool,
    weight_decay: f64,
    groups: Groups,
    buffers: Vec<Tensor>,
}

impl Sgd {
    /// Creates the optimizer with buffers of zero.
    ///
    /// # Errors
    /// The buffers exceed the memory.
    pub fn new(config: &OptimizerConfig, parameters: &Parameters) -> Result<Self, TchError> {
        Ok(Self {
            momentum: config.momentum,
            nesterov: config.nesterov,
            weight_decay: config.weight_decay,
            groups: Groups::new(parameters, config.decays_norm_and_bias()),
            buffers: zeros_like(parameters)?,
        })
    }
}

impl Update for Sgd {
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
                    nesterov: self.nesterov,
                    weight_decay: group.decay(self.weight_decay),
                };
                let buffers = group.select(&self.buffers);
                kernels::sgd(
                    &group.members(parameters)?,
                    &buffers,
                    &step,
                    divisor,
                    &select,
                )?;
            }
            self.groups.update_statistics(parameters, &select)
        })
    }

    fn state(&self) -> Vec<(&'static str, &[Tensor])> {
        vec![("momentum", &self.buffers)]
    }
}
