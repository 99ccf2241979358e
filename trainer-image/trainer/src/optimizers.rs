//! Optimizers: from gradients to new weights. Their state consists of plain tensors, so that a rank
//! can send it to a rank that lacks it.
//!
//! Each optimizer has its formula and its state. [`groups`] selects the tensors for each part of
//! the formula, and [`kernels`] computes.

use roundhouse_contract::trainer::{Optimizer as OptimizerConfig, OptimizerName};
use tch::{TchError, Tensor};

use crate::ema::Ema;
use crate::parameters::Parameters;
use crate::update::{Rate, Signals, Update};

pub mod adamw;
mod groups;
pub(crate) mod kernels;
pub mod lamb;
pub mod lars;
pub mod sgd;
mod sharded;
mod stage;
pub mod zero1;

pub use adamw::AdamW;
pub use lamb::Lamb;
pub use lars::Lars;
pub use sgd::Sgd;
pub(crate) use sharded::ShardedUpdate;
pub(crate) use stage::StageUpdate;
pub use zero1::Zero1;

/// Builds the optimizer of a configuration for parameters with their initial values. With `ema` it
/// wraps the optimizer in an [`Ema`]. The training loop clips by `maxGradNorm`: see
/// [`crate::clip`].
///
/// # Errors
/// The optimizer's state exceeds the memory.
pub fn build(
    config: &OptimizerConfig,
    parameters: &Parameters,
) -> Result<Box<dyn Update>, TchError> {
    let optimizer: Box<dyn Update> = match config.name {
        OptimizerName::Sgd => Box::new(Sgd::new(config, parameters)?),
        OptimizerName::Adamw => Box::new(AdamW::new(config, parameters)?),
        OptimizerName::Lars => Box::new(Lars::new(config, parameters)?),
        OptimizerName::Lamb => Box::new(Lamb::new(config, parameters)?),
    };
    Ok(match config.ema {
        None => optimizer,
        Some(ema) => Box::new(Ema::new(optimizer, ema.decay, parameters)?),
    })
}

/// Applies gradients to the part of the parameters that this process updates.
fn apply_to(
    own: &mut Parameters,
    gradients: &[Tensor],
    inner: &mut dyn Update,
    rate: Rate,
    signals: Signals<'_>,
) -> Result<(), TchError> {
    roundhouse_c10d::set_grad(own.tensors_mut(), gradients)?;
    inner.apply(own, rate, signals)?;
    Ok(roundhouse_c10d::zero_grad(own.tensors_mut())?)
}

/// A tensor of zeros for each parameter.
fn zeros_like(parameters: &Parameters) -> Result<Vec<Tensor>, TchError> {
    let zeros = |tensor: &Tensor| tensor.f_detach()?.f_zeros_like();
    parameters.tensors().iter().map(zeros).collect()
}
