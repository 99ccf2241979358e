//! Operations on lists of tensors, in a few kernels for the whole list and without gradients. No
//! function here waits for the device.

use std::ffi::c_int;

use tch::Tensor;

use crate::error::{Result, check};
use crate::ffi;
use crate::tensors::{made, pointers, same_length};

/// The norm of each tensor, in fp32, on its device. `order` 2 is the Euclidean norm.
///
/// # Errors
/// The list is empty or has tensors that are not floating point.
pub fn norms(tensors: &[Tensor], order: f64) -> Result<Vec<Tensor>> {
    let list = pointers(tensors);
    let mut out = vec![std::ptr::null_mut(); list.len()];
    // SAFETY: tensors and list are live, `out` has room for as many handles.
    check(unsafe { ffi::rh_foreach_norm(list.as_ptr(), list.len(), order, out.as_mut_ptr()) })?;
    // SAFETY: the bridge created each tensor with `new`, as tch expects.
    let owned = |pointer| unsafe { Tensor::from_ptr(pointer) };
    Ok(out.into_iter().map(owned).collect())
}

/// The Euclidean norm of all elements of all tensors: one fp32 number on the device.
///
/// # Errors
/// The same as [`norms`].
pub fn total_norm(tensors: &[Tensor]) -> Result<Tensor> {
    let list = pointers(tensors);
    // SAFETY: tensors and list are live, `out` valid for a write.
    made(|out| unsafe { ffi::rh_total_norm(list.as_ptr(), list.len(), out) })
}

/// `x ← √x` for each tensor.
///
/// # Errors
/// A tensor is not of a floating-point type.
pub fn sqrt_(tensors: &mut [Tensor]) -> Result<()> {
    let list = pointers(tensors);
    // SAFETY: tensors and list are live.
    check(unsafe { ffi::rh_foreach_sqrt(list.as_ptr(), list.len()) })
}

/// `x ← x + value`.
///
/// # Errors
/// The tensors' kind cannot hold the result.
pub fn add_scalar_(tensors: &mut [Tensor], value: f64) -> Result<()> {
    scalar(0, tensors, value)
}

/// `x ← x · value`.
///
/// # Errors
/// The same as [`add_scalar_`].
pub fn mul_scalar_(tensors: &mut [Tensor], value: f64) -> Result<()> {
    scalar(1, tensors, value)
}

/// `x ← x / value`, where `value` is one number on the tensors' device.
///
/// # Errors
/// `value` has more than one element or is on another device.
pub fn div_tensor_(tensors: &mut [Tensor], value: &Tensor) -> Result<()> {
    let list = pointers(tensors);
    // SAFETY: tensors, list and value are live.
    check(unsafe { ffi::rh_foreach_div_tensor(list.as_ptr(), list.len(), value.as_ptr()) })
}

/// `x ← x + factor · y`.
///
/// # Errors
/// The lists have different lengths, or the shapes do not match.
pub fn add_(tensors: &mut [Tensor], others: &[Tensor], factor: f64) -> Result<()> {
    pairwise(0, tensors, others, factor)
}

/// `x ← x · y`. A `y` of one element scales its whole tensor: a trust ratio for each layer (LARS,
/// LAMB).
///
/// # Errors
/// The same as [`add_`].
pub fn mul_(tensors: &mut [Tensor], others: &[Tensor]) -> Result<()> {
    pairwise(1, tensors, others, 1.0)
}

/// `x ← x / y`.
///
/// # Errors
/// The same as [`add_`].
pub fn div_(tensors: &mut [Tensor], others: &[Tensor]) -> Result<()> {
    pairwise(2, tensors, others, 1.0)
}

/// `x ← x + weight · (end - x)`: a moving average.
///
/// # Errors
/// The same as [`add_`].
pub fn lerp_(tensors: &mut [Tensor], ends: &[Tensor], weight: f64) -> Result<()> {
    pairwise(3, tensors, ends, weight)
}

/// `x ← y`, also between kinds and devices. The host does not wait for copies to or from pinned
/// memory.
///
/// # Errors
/// The same as [`add_`].
pub fn copy_(tensors: &mut [Tensor], sources: &[Tensor]) -> Result<()> {
    pairwise(4, tensors, sources, 1.0)
}

fn scalar(operation: c_int, tensors: &mut [Tensor], value: f64) -> Result<()> {
    let list = pointers(tensors);
    // SAFETY: tensors and list are live.
    check(unsafe { ffi::rh_foreach_scalar(operation, list.as_ptr(), list.len(), value) })
}

fn pairwise(
    operation: c_int,
    tensors: &mut [Tensor],
    others: &[Tensor],
    factor: f64,
) -> Result<()> {
    let count = same_length(&[tensors, others])?;
    let (list, other) = (pointers(tensors), pointers(others));
    let (list_at, other_at) = (list.as_ptr(), other.as_ptr());
    // SAFETY: tensors and lists are live and of this length.
    check(unsafe { ffi::rh_foreach_list(operation, list_at, other_at, count, factor) })
}

#[cfg(test)]
mod tests;
