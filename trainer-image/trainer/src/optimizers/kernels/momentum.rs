//! The momentum steps of SGD and LARS.

use roundhouse_c10d::{Gate, SgdUpdate, foreach};
use tch::{TchError, Tensor};

use super::{Select, copies, handles};
use crate::optimizers::groups::Members;

/// One step of SGD on one group.
#[derive(Clone, Copy, Debug)]
pub(in crate::optimizers) struct SgdStep {
    pub(in crate::optimizers) rate: f64,
    pub(in crate::optimizers) momentum: f64,
    pub(in crate::optimizers) nesterov: bool,
    pub(in crate::optimizers) weight_decay: f64,
}

/// `d = g + decay·w; b = momentum·b + d; w = w - rate·b`, with Nesterov
/// `w = w - rate·(d + momentum·b)`: one kernel for all tensors. Without momentum the buffers do not
/// change. A divisor divides the gradients in place.
pub(in crate::optimizers) fn sgd(
    Members { weights, gradients }: &Members,
    buffers: &[Tensor],
    step: &SgdStep,
    divisor: Option<&Tensor>,
    select: &Select,
) -> Result<(), TchError> {
    let update = SgdUpdate {
        lr: step.rate,
        momentum: step.momentum,
        weight_decay: step.weight_decay,
        nesterov: step.nesterov,
    };
    let found_inf = select.found_inf()?;
    let gate = Gate {
        grad_scale: divisor,
        found_inf: found_inf.as_ref(),
    };
    Ok(update.apply(
        &mut handles(weights),
        gradients,
        &mut handles(buffers),
        gate,
    )?)
}

/// `b = momentum·b + rate·ratio·(g + decay·w); w = w - b`, with a ratio for each tensor.
pub(in crate::optimizers) fn lars_momentum(
    Members { weights, gradients }: &Members,
    buffers: &[Tensor],
    rates: &[Tensor],
    step: &SgdStep,
    select: &Select,
) -> Result<(), TchError> {
    let mut moves = copies(gradients)?;
    if step.weight_decay > 0.0 {
        foreach::add_(&mut moves, weights, step.weight_decay)?;
    }
    foreach::mul_(&mut moves, rates)?;
    select.write_all(buffers, |buffers| {
        foreach::mul_scalar_(buffers, step.momentum)?;
        foreach::add_(buffers, &moves, 1.0)
    })?;
    select.write_all(weights, |weights| foreach::add_(weights, buffers, -1.0))
}
