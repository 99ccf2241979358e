//! What updates compute, over lists of tensors. All of it runs without gradients being recorded.
//!
//! Tensors are changed in place. If an update can be skipped, new values are computed beside the old ones, and
//! one of the two is selected on the device: NaN times 0 is NaN, so nothing is masked by a multiplication.

use roundhouse_c10d::foreach;
use tch::{Kind, TchError, Tensor};

mod adam;
mod layerwise;
mod momentum;

pub(super) use adam::{AdamStep, adamw, lamb_directions};
pub(super) use layerwise::{lamb_ratios, lars_ratios, move_by, same};
pub(super) use momentum::{SgdStep, lars_momentum, sgd};

/// Whether new values replace old ones; decided on the device.
#[derive(Debug)]
pub(crate) struct Select {
    /// A boolean scalar: true keeps the old values.
    keeps: Option<Tensor>,
}

impl Select {
    pub(crate) fn new(skip: Option<&Tensor>) -> Result<Self, TchError> {
        // Of no dimension, so that it selects for a parameter of none, too.
        let scalar = |skip: &Tensor| skip.f_ne(0.0)?.f_reshape([0_i64; 0]);
        let keeps = skip.map(scalar).transpose()?;
        Ok(Self { keeps })
    }

    /// The same as the fused kernels take it: 1 keeps the old values.
    fn found_inf(&self) -> Result<Option<Tensor>, TchError> {
        let keeps = self.keeps.as_ref();
        keeps.map(|keeps| keeps.f_to_kind(Kind::Float)).transpose()
    }

    /// Changes tensors by `in_place`, unless their old values are to be kept. If the device decides that, the
    /// change is made to copies.
    fn write_all(
        &self,
        targets: &[Tensor],
        in_place: impl FnOnce(&mut [Tensor]) -> roundhouse_c10d::Result<()>,
    ) -> Result<(), TchError> {
        let Some(keeps) = &self.keeps else {
            return Ok(in_place(&mut handles(targets))?);
        };
        if targets.is_empty() {
            return Ok(());
        }
        let mut changed = copies(targets)?;
        in_place(&mut changed)?;
        for (target, changed) in targets.iter().zip(&changed) {
            let _ = target.f_where_self_out(target, keeps, changed)?;
        }
        Ok(())
    }
}

/// The gradient of a parameter; the name is for the error.
pub(crate) fn gradient<'name>(
    tensor: &Tensor,
    name: impl FnOnce() -> &'name str,
) -> Result<Tensor, TchError> {
    let gradient = tensor.f_grad()?;
    if gradient.defined() {
        Ok(gradient)
    } else {
        Err(TchError::Torch(format!("{} has no gradient", name())))
    }
}

/// Norm of some tensors taken as one vector: a scalar on their device; 0 of none.
pub(crate) fn norm(tensors: &[Tensor]) -> Result<Tensor, TchError> {
    if tensors.is_empty() {
        return Tensor::f_zeros([0_i64; 0], (Kind::Float, tch::Device::Cpu));
    }
    Ok(foreach::total_norm(tensors)?)
}

/// `average = average + weight · (value - average)` for each pair.
pub(crate) fn average(
    averages: &[Tensor],
    values: &[Tensor],
    weight: f64,
    select: &Select,
) -> Result<(), TchError> {
    select.write_all(averages, |averages| {
        foreach::lerp_(averages, values, weight)
    })
}

/// The norm of each tensor, `[n]`.
fn norms(tensors: &[Tensor]) -> Result<Tensor, TchError> {
    let norms = foreach::norms(tensors, 2.0)?;
    Tensor::f_stack(&norms, 0)
}

/// Handles of some tensors, to be changed in place.
fn handles(tensors: &[Tensor]) -> Vec<Tensor> {
    tensors.iter().map(Tensor::shallow_clone).collect()
}

/// A scalar on the device of a tensor; made there, without a copy from the host.
fn scalar(value: f64, like: &Tensor) -> Result<Tensor, TchError> {
    Tensor::f_full([0_i64; 0], value, (Kind::Float, like.device()))
}

/// New tensors with the values of some others.
fn copies(tensors: &[Tensor]) -> Result<Vec<Tensor>, TchError> {
    let empty = tensors.iter().map(Tensor::f_empty_like);
    let mut copies = empty.collect::<Result<Vec<_>, _>>()?;
    foreach::copy_(&mut copies, tensors)?;
    Ok(copies)
}

/// Gradients divided by the divisor, if there is one; the given ones stay as they are.
pub(super) fn divided(
    gradients: &[Tensor],
    divisor: Option<&Tensor>,
) -> Result<Vec<Tensor>, TchError> {
    let Some(divisor) = divisor else {
        return Ok(handles(gradients));
    };
    let mut divided = copies(gradients)?;
    foreach::div_tensor_(&mut divided, divisor)?;
    Ok(divided)
}
