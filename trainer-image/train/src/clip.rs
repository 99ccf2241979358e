//! The norm of the gradient, and clipping by it.
//!
//! The norm is computed once per step and stays on the device. The loop reports it, and the update divides by
//! [`divisor`] of it while it reads the gradients, so clipping needs no pass of its own.

use tch::{TchError, Tensor};

use crate::optimizers::kernels;
use crate::parameters::{Parameters, Role};

/// Norm of the gradients of all weights taken as one vector: a scalar 32-bit float on the device. Statistics do
/// not count. The host does not wait.
///
/// # Errors
/// A weight has no gradient.
pub fn gradient_norm(parameters: &Parameters) -> Result<Tensor, TchError> {
    let weights = parameters.iter().zip(parameters.roles());
    let gradients: Vec<Tensor> = weights
        .filter(|(_, role)| **role == Role::Weight)
        .map(|((name, tensor), _)| kernels::gradient(tensor, || name))
        .collect::<Result<_, _>>()?;
    kernels::norm(&gradients)
}

/// What to divide gradients by so that their norm is at most `max_norm`: `max(1, (norm + 1e-6) / max_norm)`, as
/// `torch.nn.utils.clip_grad_norm_`. Pass it as [`crate::update::Signals::divisor`].
///
/// # Errors
/// libtorch failed.
pub fn divisor(norm: &Tensor, max_norm: f64) -> Result<Tensor, TchError> {
    norm.f_add_scalar(1e-6)?
        .f_div_scalar_(max_norm)?
        .f_clamp_min_(1.0)
}
