//! Momentum: the steps of SGD and LARS.

use tch::{TchError, Tensor};

use super::{Select, divided, scalar};
use crate::optimizers::groups::Members;

/// One step of SGD on one group.
#[derive(Clone, Copy, Debug)]
pub(in crate::optimizers) struct SgdStep {
    pub(in crate::optimizers) rate: f64,
    pub(in crate::optimizers) momentum: f64,
    pub(in crate::optimizers) nesterov: bool,
    pub(in crate::optimizers) weight_decay: f64,
}

/// `d = g + decay·w; b = momentum·b + d; w = w - rate·b`, with Nesterov `w = w - rate·(d + momentum·b)`.
pub(in crate::optimizers) fn sgd(
    Members { weights, gradients }: &Members,
    buffers: &[Tensor],
    step: &SgdStep,
    divisor: Option<&Tensor>,
    select: &Select,
) -> Result<(), TchError> {
    let Some(first) = weights.first() else {
        return Ok(());
    };
    let [momentum, minus_rate] = [scalar(step.momentum, first)?, scalar(-step.rate, first)?];
    let decay = scalar(step.weight_decay, first)?;
    for ((weight, gradient), buffer) in weights.iter().zip(gradients).zip(buffers) {
        let gradient = divided(gradient, divisor)?;
        let direction = if step.weight_decay > 0.0 {
            gradient.f_addcmul(weight, &decay)?
        } else {
            gradient
        };
        select.write(buffer, |buffer| {
            let old = buffer.shallow_clone();
            direction.f_addcmul_out(buffer, &old, &momentum)
        })?;
        let moved_by = if step.nesterov {
            direction.f_addcmul(buffer, &momentum)?
        } else {
            buffer.shallow_clone()
        };
        select.write(weight, |weight| weight.f_addcmul_(&moved_by, &minus_rate))?;
    }
    Ok(())
}

/// `b = momentum·b + rate·ratio·(g + decay·w); w = w - b`, with a ratio for each tensor.
pub(in crate::optimizers) fn lars_momentum(
    Members { weights, gradients }: &Members,
    buffers: &[Tensor],
    rates: &[Tensor],
    step: &SgdStep,
    select: &Select,
) -> Result<(), TchError> {
    let Some(first) = weights.first() else {
        return Ok(());
    };
    let decay = scalar(step.weight_decay, first)?;
    let tensors = weights.iter().zip(gradients).zip(buffers).zip(rates);
    for (((weight, gradient), buffer), rate) in tensors {
        let direction = if step.weight_decay > 0.0 {
            gradient.f_addcmul(weight, &decay)?
        } else {
            gradient.shallow_clone()
        };
        select.write(buffer, |buffer| {
            buffer
                .f_mul_scalar_(step.momentum)?
                .f_addcmul_(&direction, rate)
        })?;
        select.write(weight, |weight| weight.f_sub_(buffer))?;
    }
    Ok(())
}
