//! Passes tensors and lists of tensors to C++ and back.

use std::ffi::c_int;

use tch::Tensor;
use torch_sys::C_tensor;

use crate::error::{Error, Result, check};

/// The tensors' handles, which are valid while the tensors live. A shared handle can change the
/// contents of a `Tensor`, so a caller that writes to the tensors must take `&mut [Tensor]` itself.
pub(crate) fn pointers(tensors: &[Tensor]) -> Vec<*mut C_tensor> {
    let pointer = |tensor: &Tensor| tensor.as_ptr().cast_mut();
    tensors.iter().map(pointer).collect()
}

/// The handle of a tensor, or null.
pub(crate) fn pointer(tensor: Option<&Tensor>) -> *const C_tensor {
    tensor.map_or(std::ptr::null(), Tensor::as_ptr)
}

/// Wraps a tensor that a call into C++ creates.
pub(crate) fn made(call: impl FnOnce(*mut *mut C_tensor) -> c_int) -> Result<Tensor> {
    let mut made = std::ptr::null_mut();
    check(call(&raw mut made))?;
    // SAFETY: the bridge created the tensor with `new`, as tch expects, and keeps no handle.
    Ok(unsafe { Tensor::from_ptr(made) })
}

/// Checks that the lists have the same length, and returns it.
pub(crate) fn same_length(lists: &[&[Tensor]]) -> Result<usize> {
    let lengths: Vec<usize> = lists.iter().map(|list| list.len()).collect();
    match lengths.first() {
        Some(first) if lengths.iter().all(|length| length == first) => Ok(*first),
        _ => Err(Error::refused(format!(
            "lists of different lengths: {lengths:?}"
        ))),
    }
}
