//! Memory formats: how a tensor's elements lie in memory. tch's own calls drop them.

use std::ffi::c_int;

use tch::Tensor;

use crate::error::{Result, check};
use crate::ffi;
use crate::tensors::{made, pointers};

/// How elements lie in memory. The numbers are libtorch's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryFormat {
    /// The last dimension is the closest: NCHW for images.
    Contiguous = 0,
    /// As the tensor it is made from.
    Preserve = 1,
    /// NHWC: channels are the closest. Of tensors with 4 dimensions; convolutions on tensor cores are faster so.
    ChannelsLast = 2,
    /// NDHWC, of tensors with 5 dimensions.
    ChannelsLast3d = 3,
}

/// The tensor itself if it has the format, else a copy that has it.
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
/// Out of memory, or the format needs another number of dimensions.
pub fn empty_like(tensor: &Tensor, format: MemoryFormat) -> Result<Tensor> {
    // SAFETY: the tensor is live, `out` valid for a write.
    made(|out| unsafe { ffi::rh_empty_like(tensor.as_ptr(), format as c_int, out) })
}

/// Changes the format of tensors in place. Leaves that require gradients stay leaves; tensors that have another
/// number of dimensions than the format stay as they are, so all weights of a model may be given. Do it before a
/// Reducer or an optimizer's state is built over them.
///
/// # Errors
/// Out of memory.
pub fn convert(tensors: &mut [Tensor], format: MemoryFormat) -> Result<()> {
    let list = pointers(tensors);
    // SAFETY: tensors and list are live.
    check(unsafe { ffi::rh_convert(list.as_ptr(), list.len(), format as c_int) })
}

#[cfg(test)]
mod tests;
