//! The gradient norm, and the divisor that clips and unscales the gradients.
//!
//! The norm is computed once per step. The loop reports it, and the update divides by
//! [`Measured::divisor`] while it reads the gradients. So neither clipping nor unscaling needs
//! another pass over the gradients.

use roundhouse_member::links::NUM_NUMBERS;
use tch::{Kind, TchError, Tensor};

use crate::optimizers::kernels;
use crate::parameters::{Parameters, Role};

/// L2 norm of the gradients of all weights taken as one vector: a scalar 32-bit float on the
/// device. Running statistics are left out. The host does not wait.
///
/// # Errors
/// A weight has no gradient.
pub fn gradient_norm(parameters: &Parameters) -> Result<Tensor, TchError> {
    kernels::norm(&gradients_of(parameters, |role| *role == Role::Weight)?)
}

/// The gradients of the tensors whose role passes the filter.
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

/// Norms of a step's gradients, and their divisor, on the device.
#[derive(Debug)]
pub struct Norms {
    /// 64-bit floats: the norm of the loss' gradient before clipping, and the norm of the
    /// statistics if there are any.
    pub norms: Tensor,
    /// Divisor of the gradients in the update: see [`crate::update::Signals::divisor`].
    pub divisor: Option<Tensor>,
}

/// Norm of a step's gradients, and their divisor, as the host reads them.
#[derive(Debug)]
pub struct Measured {
    /// Norm of the loss' gradient before clipping.
    pub norm: f64,
    /// Whether gradients and statistics are finite.
    pub is_finite: bool,
    /// Divisor of the gradients in the update: see [`crate::update::Signals::divisor`].
    pub divisor: Option<Tensor>,
}

/// The gradients of a process, if they are sharded over the processes of its replica.
#[derive(Debug)]
pub(crate) struct Sharded<'a> {
    /// What the process updates: first what it alone has.
    pub(crate) leaves: &'a Parameters,
    /// Number of leaves that this process alone has.
    pub(crate) num_own: usize,
    /// Whether this process counts the leaves that all processes have.
    pub(crate) counts_replicated: bool,
}

/// Measures as [`measure`] does. `sum` computes the sums of numbers over the processes of the
/// replica.
///
/// # Errors
/// A tensor has no gradient, or `sum` fails.
pub(crate) fn measure_in_replica<E: From<TchError>>(
    own: &Sharded<'_>,
    loss_factor: Option<f64>,
    max_norm: Option<f64>,
    sum: impl FnOnce([f64; NUM_NUMBERS]) -> Result<[f64; NUM_NUMBERS], E>,
) -> Result<Measured, E> {
    let (mut weights, mut statistics) = (Vec::new(), Vec::new());
    let tensors = own.leaves.iter().zip(own.leaves.roles());
    for (index, ((name, tensor), role)) in tensors.enumerate() {
        let mut gradient = kernels::gradient(tensor, || name)?;
        match role {
            Role::Weight => {
                if own.counts_replicated || index < own.num_own {
                    weights.push(gradient);
                }
            }
            Role::Statistic { .. } => {
                if let Some(factor) = loss_factor {
                    gradient = gradient.f_div_scalar_(factor)?;
                }
                statistics.push(gradient);
            }
        }
    }
    let device = own.leaves.device();
    let norm = |tensors: &[Tensor]| kernels::norm(tensors)?.f_to_device(device);
    // One copy for both norms, so the host waits once.
    let norms = Tensor::f_stack(&[norm(&weights)?, norm(&statistics)?], 0)?;
    let norms = Vec::<f64>::try_from(norms.f_to_kind(Kind::Double)?)?;
    let [weights, statistics] = sum([norms[0].powi(2), norms[1].powi(2)])?;
    let norm = weights.sqrt() / loss_factor.unwrap_or(1.0);
    let on_device = Tensor::f_full([], norm, (Kind::Float, device))?;
    Ok(Measured {
        norm,
        is_finite: norm.is_finite() && statistics.is_finite(),
        divisor: divisor_of(&on_device, loss_factor, max_norm)?,
    })
}

/// The divisor that clips to `max_norm` and divides by `loss_factor`; `None`: 1.
fn divisor_of(
    norm: &Tensor,
    loss_factor: Option<f64>,
    max_norm: Option<f64>,
) -> Result<Option<Tensor>, TchError> {
    let clips = max_norm.map(|most| divisor(norm, most)).transpose()?;
    Ok(match (clips, loss_factor) {
        (clips, None) => clips,
        (Some(mut clips), Some(factor)) => Some(clips.f_mul_scalar_(factor)?),
        (None, Some(factor)) => Some(norm.f_full_like(factor)?),
    })
}

/// Measures the gradients of `loss_factor` times the loss (`None`: of the loss), and computes the
/// divisor that clips them to a norm of `max_norm`. The gradients do not change here. Statistics
/// are divided by `loss_factor` here, because no later operation divides them. The host waits for
/// the norm.
///
/// # Errors
/// A tensor has no gradient.
pub fn measure(
    parameters: &Parameters,
    loss_factor: Option<f64>,
    max_norm: Option<f64>,
) -> Result<Measured, TchError> {
    let Norms { norms, divisor } = norms(parameters, loss_factor, max_norm)?;
    // One copy for all norms, so the host waits once.
    let norms = Vec::<f64>::try_from(norms)?;
    Ok(Measured {
        norm: norms[0],
        is_finite: norms.iter().all(|norm| norm.is_finite()),
        divisor,
    })
}

/// Computes the same as [`measure`], but the host does not wait.
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
    let divisor = divisor_of(&norm, loss_factor, max_norm)?;
    let mut norms = vec![norm];
    if !statistics.is_empty() {
        norms.push(kernels::norm(&statistics)?);
    }
    Ok(Norms {
        norms: Tensor::f_stack(&norms, 0)?.f_to_kind(Kind::Double)?,
        divisor,
    })
}

/// The divisor that limits the gradient norm to `max_norm`: `max(1, (norm + 1e-6) / max_norm)`, as
/// in `torch.nn.utils.clip_grad_norm_`. Pass it as [`crate::update::Signals::divisor`].
///
/// # Errors
/// libtorch refuses an operation.
pub fn divisor(norm: &Tensor, max_norm: f64) -> Result<Tensor, TchError> {
    norm.f_add_scalar(1e-6)?
        .f_div_scalar_(max_norm)?
        .f_clamp_min_(1.0)
}
