//! Stochastic gradient descent with momentum, as `torch.optim.SGD`: weight decay is added to the
//! gradient, the momentum buffer is a plain sum, and the rate multiplies the buffer.

use roundhouse_contract::trainer::Optimizer as OptimizerConfig;
use tch::{TchError, Tensor};

use super::{Optimizer, zeros_like};
use crate::model::Parameters;

/// `g = gradient + decay·w; b = momentum·b + g; w = w - rate·b`.
#[derive(Debug)]
pub struct Sgd {
    momentum: f64,
    weight_decay: f64,
    buffers: Vec<Tensor>,
}

impl Sgd {
    /// With empty buffers.
    ///
    /// # Errors
    /// The buffers exceed the memory.
    pub fn new(config: &OptimizerConfig, parameters: &Parameters) -> Result<Self, TchError> {
        Ok(Self {
            momentum: config.momentum,
            weight_decay: config.weight_decay,
            buffers: zeros_like(parameters)?,
        })
    }
}

impl Optimizer for Sgd {
    fn step(&mut self, parameters: &mut Parameters, rate: f64, _: u64) -> Result<(), TchError> {
        let Self {
            momentum,
            weight_decay,
            buffers,
        } = self;
        tch::no_grad(|| {
            for (weight, buffer) in parameters.tensors_mut().iter_mut().zip(buffers) {
                let _ = buffer.f_mul_scalar_(*momentum)?.f_add_(&weight.f_grad()?)?;
                if *weight_decay > 0.0 {
                    let _ = buffer.f_add_(&weight.f_mul_scalar(*weight_decay)?)?;
                }
                let _ = weight.f_sub_(&buffer.f_mul_scalar(rate)?)?;
            }
            Ok(())
        })
    }

    fn state(&self) -> Vec<(&'static str, &[Tensor])> {
        vec![("momentum", &self.buffers)]
    }
}
