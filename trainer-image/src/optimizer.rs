//! Optimizers: from gradients to new weights. They keep their state as plain tensors, so that it
//! can be sent to a rank that lacks it.

use roundhouse_contract::trainer::{Optimizer as OptimizerConfig, OptimizerName};
use tch::{TchError, Tensor};

use crate::model::Parameters;

pub mod adamw;
pub mod sgd;

pub use adamw::AdamW;
pub use sgd::Sgd;

/// Updates weights in place. The update is local: no collective, nothing that waits.
pub trait Optimizer: std::fmt::Debug {
    /// Applies the gradients that the parameters hold. `step` counts from 1.
    ///
    /// # Errors
    /// A parameter has no gradient.
    fn step(&mut self, parameters: &mut Parameters, rate: f64, step: u64) -> Result<(), TchError>;

    /// Everything it remembers between steps, but for their number: by name, one tensor for each
    /// parameter, in their order.
    fn state(&self) -> Vec<(&'static str, &[Tensor])>;
}

/// Builds the optimizer of a configuration for some parameters.
///
/// # Errors
/// Its state exceeds the memory.
pub fn build(
    config: &OptimizerConfig,
    parameters: &Parameters,
) -> Result<Box<dyn Optimizer>, TchError> {
    Ok(match config.name {
        OptimizerName::Sgd => Box::new(Sgd::new(config, parameters)?),
        OptimizerName::Adamw => Box::new(AdamW::new(config, parameters)?),
    })
}

/// A zero tensor for each parameter.
fn zeros_like(parameters: &Parameters) -> Result<Vec<Tensor>, TchError> {
    let zeros = |tensor: &Tensor| tensor.f_detach()?.f_zeros_like();
    parameters.tensors().iter().map(zeros).collect()
}

#[cfg(test)]
mod tests;
