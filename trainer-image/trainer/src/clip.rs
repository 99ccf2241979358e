//! The norm of the gradient, clipping by it, and unscaling.
//!
//! The norm is computed once per step. The loop reports it, and the update divides by [`Measured::divisor`] while it
//! reads the gradients, so neither clipping nor unscaling needs a pass of its own.

use tch::{Kind, TchError, Tensor};

use crate::optimizers::kernels;
use crate::parameters::{Parameters, Role};

/// Norm of the gradients of all weights taken as one vector: a scalar 32-bit float on the device. Statistics do
/// not count. The host does not wait.
///
/// # Errors
/// A weight has no gradient.
pub fn gradient_norm(parameters: &Parameters) -> Result<Tensor, TchError> {
    kernels::norm(&gradients_of(parameters, |role| *role == Role::Weight)?)
}

/// The gradients of the tensors of some role.
fn gradients_of(
    parameters: &Parameters,
    is_meant: impl Fn(&Role) -> bool,
) -> Result<Vec<Tensor>, TchError> {
    let tensors = parameters.iter().zip(parameters.roles());
    tensors
        .filter(|(_, role)| is_meant(role))
        .map(|((name, tensor), _)| kernels::gradient(tensor, || name))
        .collect()
}

/// What is known of the gradients of a step on the device.
#[derive(Debug)]
pub struct Norms {
    /// In 64 bits: the norm of the gradient of the loss before clipping, and that of the statistics if there are any.
    pub norms: Tensor,
    /// What the update divides gradients by: see [`crate::update::Signals::divisor`].
    pub divisor: Option<Tensor>,
}

/// What is known of the gradients of a step.
#[derive(Debug)]
pub struct Measured {
    /// Norm of the gradient of the loss, before clipping.
    pub norm: f64,
    /// Whether gradients and statistics are finite.
    pub is_finite: bool,
    /// What the update divides gradients by: see [`crate::update::Signals::divisor`].
    pub divisor: Option<Tensor>,
}

/// Measures gradients of `loss_factor` times the loss (`None`: of the loss), which are to be clipped to a norm of
/// `max_norm`. The gradients stay as they are; statistics, which nothing divides later, are divided by `loss_factor`
/// here. The host waits for the norm.
///
/// # Errors
/// A tensor has no gradient.
pub fn measure(
    parameters: &Parameters,
    loss_factor: Option<f64>,
    max_norm: Option<f64>,
) -> Result<Measured, TchError> {
    let Norms { norms, divisor } = norms(parameters, loss_factor, max_norm)?;
    // All in one copy: the host waits once.
    let norms = Vec::<f64>::try_from(norms)?;
    Ok(Measured {
        norm: norms[0],
        is_finite: norms.iter().all(|norm| norm.is_finite()),
        divisor,
    })
}

/// [`measure`], but the host does not wait.
///
/// # Errors
/// A tensor has no gradient.
pub fn norms(
    parameters: &Parameters,
    loss_factor: Option<f64>,
    max_norm: Option<f64>,
) -> Result<Norms, TchError> {
    let mut statistics = gradients_of(parameters, |role| *role != Role::Weight)?;
    let scaled = gradient_norm(parameters)?;
    let norm = match loss_factor {
        None => scaled,
        Some(factor) => {
            for statistic in &mut statistics {
                let _ = statistic.f_div_scalar_(factor)?;
            }
            scaled.f_div_scalar(factor)?
        }
    };
    let clips = max_norm.map(|most| divisor(&norm, most)).transpose()?;
    let divisor = match (clips, loss_factor) {
        (clips, None) => clips,
        (Some(mut clips), Some(factor)) => Some(clips.f_mul_scalar_(factor)?),
        (None, Some(factor)) => Some(norm.f_full_like(factor)?),
    };
    let mut norms = vec![norm];
    if !statistics.is_empty() {
        norms.push(kernels::norm(&statistics)?);
    }
    Ok(Norms {
        norms: Tensor::f_stack(&norms, 0)?.f_to_kind(Kind::Double)?,
        divisor,
    })
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
