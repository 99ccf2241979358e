//! The computations of updates, over lists of tensors. They run without recording gradients.
//!
//! Kernels change tensors in place. If the device may skip an update, the new values are computed
//! beside the old ones, and the device selects one of the two. A multiplication by 0 could not mask
//! new values, because NaN times 0 is NaN.

use roundhouse_c10d::foreach;
use tch::{Kind, TchError, Tensor};

mod adam;
mod layerwise;
mod momentum;

pub(super) use adam::{AdamStep, adamw, lamb_directions};
pub(super) use layerwise::{lamb_ratios, lars_ratios, move_by, same};
pub(super) use momentum::{SgdStep, lars_momentum, sgd};

/// Selects on the device whether new values replace old values.
#[derive(Debug)]
pub(crate) struct Select {
    /// A boolean scalar: true keeps the old values.
    keeps: Option<Tensor>,
}

impl Select {
    pub(crate) fn new(skip: Option<&Tensor>) -> Result<Self, TchError> {
        // Without dimensions, so that the selection also broadcasts to scalar parameters.
        let scalar = |skip: &Tensor| skip.f_ne(0.0)?.f_reshape([0_i64; 0]);
        let keeps = skip.map(scalar).transpose()?;
        Ok(Self { keeps })
    }

    /// The flag for the fused kernels: 1 keeps the old values.
    fn found_inf(&self) -> Result<Option<Tensor>, TchError> {
        let keeps = self.keeps.as_ref();
        keeps.map(|keeps| keeps.f_to_kind(Kind::Float)).transpose()
    }

    /// Changes tensors by `in_place`, unless the flag keeps their old values. If there is a flag,
    /// it changes copies first.
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

    /// Like [`Self::write_all`] for many small tensors of one type: one selection for all of them,
    /// because each selection costs a kernel launch.
    fn write_small(
        &self,
        targets: &[Tensor],
        in_place: impl FnOnce(&mut [Tensor]) -> roundhouse_c10d::Result<()>,
    ) -> Result<(), TchError> {
        let Some(keeps) = self.keeps.as_ref().filter(|_| targets.len() > 1) else {
            return self.write_all(targets, in_place);
        };
        let mut changed = copies(targets)?;
        in_place(&mut changed)?;
        let chosen = row(targets)?.f_where_self(keeps, &row(&changed)?)?;
        let lengths: Vec<i64> = targets
            .iter()
            .map(|it| i64::try_from(it.numel()).unwrap_or(i64::MAX))
            .collect();
        let parts = chosen.f_split_with_sizes(&lengths[..], 0)?;
        let parts = parts
            .iter()
            .zip(targets)
            .map(|(part, target)| part.f_view_as(target));
        let parts = parts.collect::<Result<Vec<_>, _>>()?;
        Ok(foreach::copy_(&mut handles(targets), &parts)?)
    }
}

/// Concatenates the values of tensors into one row.
fn row(tensors: &[Tensor]) -> Result<Tensor, TchError> {
    let flat = tensors.iter().map(|tensor| tensor.f_reshape([-1_i64]));
    Tensor::f_cat(&flat.collect::<Result<Vec<_>, _>>()?, 0)
}

/// The gradient of a parameter. The error message contains the name.
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

/// Norm of tensors taken as one vector: a scalar on their device; 0 without tensors.
pub(crate) fn norm(tensors: &[Tensor]) -> Result<Tensor, TchError> {
    if tensors.is_empty() {
        return Tensor::f_zeros([0_i64; 0], (Kind::Float, tch::Device::Cpu));
    }
    Ok(foreach::total_norm(tensors)?)
}

/// `average = average + weight · (value - average)` for each pair, for many small tensors.
pub(crate) fn average_small(
    averages: &[Tensor],
    values: &[Tensor],
    weight: f64,
    select: &Select,
) -> Result<(), TchError> {
    select.write_small(averages, |averages| {
        foreach::lerp_(averages, values, weight)
    })
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

/// Handles of tensors, for changes in place.
fn handles(tensors: &[Tensor]) -> Vec<Tensor> {
    tensors.iter().map(Tensor::shallow_clone).collect()
}

/// A scalar, created on the device of `like` without a copy from the host.
fn scalar(value: f64, like: &Tensor) -> Result<Tensor, TchError> {
    Tensor::f_full([0_i64; 0], value, (Kind::Float, like.device()))
}

/// Copies of tensors in new memory.
fn copies(tensors: &[Tensor]) -> Result<Vec<Tensor>, TchError> {
    let empty = tensors.iter().map(Tensor::f_empty_like);
    let mut copies = empty.collect::<Result<Vec<_>, _>>()?;
    foreach::copy_(&mut copies, tensors)?;
    Ok(copies)
}

/// Gradients divided by the divisor, if there is one. The originals do not change.
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

#[cfg(test)]
mod tests {
    use tch::Device;

    use super::*;

    #[test]
    fn shared_selection_changes_all_tensors_or_none() {
        let tensor = |shape: &[i64], from: f64| {
            Tensor::arange(shape.iter().product::<i64>(), (Kind::Float, Device::Cpu)).reshape(shape)
                + from
        };
        let values = [
            tensor(&[3], 10.0),
            tensor(&[2, 2], 20.0),
            tensor(&[], f64::NAN),
        ];
        for skip in [0.0, 1.0] {
            let skip = Tensor::from(skip);
            let select = Select::new(Some(&skip)).unwrap();
            let start = || [tensor(&[3], 0.0), tensor(&[2, 2], 1.0), tensor(&[], 2.0)];
            let (one_by_one, together) = (start(), start());
            average(&one_by_one, &values, 0.1, &select).unwrap();
            average_small(&together, &values, 0.1, &select).unwrap();
            for (expected, found) in one_by_one.iter().zip(&together) {
                assert_eq!(expected.size(), found.size());
                assert!(
                    expected.allclose(found, 0.0, 0.0, true),
                    "{expected} {found}"
                );
            }
        }
    }
}
