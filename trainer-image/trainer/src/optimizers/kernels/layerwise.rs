//! Learning rates per tensor: the trust ratios of LARS and LAMB. They stay on the device.

use roundhouse_c10d::foreach;
use tch::{TchError, Tensor};

use super::{Select, norms, scalar};

/// `where(both norms > 0, ratio, 1)` for each tensor, and as one scalar per tensor.
fn unless_zero(norms_of: [&Tensor; 2], ratio: &Tensor) -> Result<Tensor, TchError> {
    let [left, right] = norms_of;
    let both = left.f_gt(0.0)?.f_logical_and(&right.f_gt(0.0)?)?;
    ratio.f_where_self(&both, &ratio.f_ones_like()?)
}

/// `rate · trust · |w| / (|g| + decay·|w|)` for each tensor. It is `rate` where a norm is 0, so
/// that a tensor of zeros can change.
pub(in crate::optimizers) fn lars_ratios(
    weights: &[Tensor],
    gradients: &[Tensor],
    trust_coefficient: f64,
    weight_decay: f64,
    rate: f64,
) -> Result<Vec<Tensor>, TchError> {
    let (of_weights, of_gradients) = (norms(weights)?, norms(gradients)?);
    let denominator = of_weights
        .f_mul_scalar(weight_decay)?
        .f_add_(&of_gradients)?;
    let ratio = of_weights
        .f_mul_scalar(trust_coefficient)?
        .f_div_(&denominator)?;
    let ratio = unless_zero([&of_weights, &of_gradients], &ratio)?;
    ratio.f_mul_scalar(rate)?.f_unbind(0)
}

/// `-rate · |w| / |u|` for each tensor; `-rate` where a norm is 0.
pub(in crate::optimizers) fn lamb_ratios(
    weights: &[Tensor],
    directions: &[Tensor],
    rate: f64,
) -> Result<Vec<Tensor>, TchError> {
    let (of_weights, of_directions) = (norms(weights)?, norms(directions)?);
    let ratio = of_weights.f_div(&of_directions)?;
    let ratio = unless_zero([&of_weights, &of_directions], &ratio)?;
    ratio.f_mul_scalar(-rate)?.f_unbind(0)
}

/// `w = w + coefficient · direction`, with a coefficient for each tensor. The directions are scaled
/// in place.
pub(in crate::optimizers) fn move_by(
    weights: &[Tensor],
    mut directions: Vec<Tensor>,
    coefficients: &[Tensor],
    select: &Select,
) -> Result<(), TchError> {
    foreach::mul_(&mut directions, coefficients)?;
    select.write_all(weights, |weights| foreach::add_(weights, &directions, 1.0))
}

/// A list with the same coefficient for each tensor.
pub(in crate::optimizers) fn same(value: f64, weights: &[Tensor]) -> Result<Vec<Tensor>, TchError> {
    let Some(first) = weights.first() else {
        return Ok(Vec::new());
    };
    let value = scalar(value, first)?;
    Ok(weights.iter().map(|_| value.shallow_clone()).collect())
}
