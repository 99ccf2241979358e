//! Memory formats: the order of a tensor's elements in memory. tch's own calls do not preserve
//! them.

use std::ffi::c_int;

use tch::Tensor;

use crate::error::{Result, check};
use crate::ffi;
use crate::tensors::{made, pointers};

/// The order of elements in memory. The numbers are those of libtorch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryFormat {
    /// Consecutive elements along the last dimension: NCHW for images.
    Contiguous = 0,
    /// The format of the source tensor.
    Preserve = 1,
    /// NHWC, for tensors with 4 dimensions: consecutive elements along the channels. Convolutions
    /// on tensor cores are faster in this format.
    ChannelsLast = 2,
    /// NDHWC, for tensors with 5 dimensions.
    ChannelsLast3d = 3,
}

/// Returns the tensor itself if it has the format, else a copy with the format.
///
/// # Errors
/// The format needs another number of dimensions.
pub fn contiguous(tensor: &Tensor, format: MemoryFormat) -> Result<Tensor> {
    // SAFETY: the tensor is live, `out` valid for a write.
    made(|out| unsafe { ffi::rh_contiguous(tensor.as_ptr(), format as c_int, out) })
}

/// Whether the tensor is contiguous in [`MemoryFormat::ChannelsLast`].
///
/// # Errors
/// The tensor is undefined.
pub fn is_channels_last(tensor: &Tensor) -> Result<bool> {
    let (mut is, format) = (false, MemoryFormat::ChannelsLast as c_int);
    // SAFETY: the tensor is live, `is` valid for a write.
    check(unsafe { ffi::rh_is_contiguous(tensor.as_ptr(), format, &raw mut is) })?;
    Ok(is)
}

/// An uninitialized tensor of the same shape, kind and device.
///
/// # Errors
/// There is too little memory, or the format needs another number of dimensions.
pub fn empty_like(tensor: &Tensor, format: MemoryFormat) -> Result<Tensor> {
    // SAFETY: the tensor is live, `out` valid for a write.
    made(|out| unsafe { ffi::rh_empty_like(tensor.as_ptr(), format as c_int, out) })
}

/// Changes the format of tensors in place. Leaves that require gradients stay leaves. Tensors with
/// another number of dimensions do not change, so the caller can pass all weights of a model. Call
/// it before creating a Reducer or an optimizer's state for the tensors.
///
/// # Errors
/// There is too little memory.
pub fn convert(tensors: &mut [Tensor], format: MemoryFormat) -> Result<()> {
    let list = pointers(tensors);
    // SAFETY: tensors and list are live.
    check(unsafe { ffi::rh_convert(list.as_ptr(), list.len(), format as c_int) })
}

#[cfg(test)]
mod tests;
