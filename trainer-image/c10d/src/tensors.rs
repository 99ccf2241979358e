//! Tensors and lists of them, to C++ and back.

use std::ffi::c_int;

use tch::Tensor;
use torch_sys::C_tensor;

use crate::error::{Error, Result, check};

/// The tensors' handles. They are good for as long as the tensors live; a `Tensor` is a handle whose contents can
/// change through a shared one, so a caller that writes into them takes `&mut [Tensor]` for itself.
pub(crate) fn pointers(tensors: &[Tensor]) -> Vec<*mut C_tensor> {
    let pointer = |tensor: &Tensor| tensor.as_ptr().cast_mut();
    tensors.iter().map(pointer).collect()
}

/// Null for no tensor.
pub(crate) fn pointer(tensor: Option<&Tensor>) -> *const C_tensor {
    tensor.map_or(std::ptr::null(), Tensor::as_ptr)
}

/// A tensor that C++ makes.
pub(crate) fn made(call: impl FnOnce(*mut *mut C_tensor) -> c_int) -> Result<Tensor> {
    let mut made = std::ptr::null_mut();
    check(call(&raw mut made))?;
    // SAFETY: the bridge has made it with `new`, as tch expects, and keeps no handle.
    Ok(unsafe { Tensor::from_ptr(made) })
}

/// The lists have one length.
pub(crate) fn same_length(lists: &[&[Tensor]]) -> Result<usize> {
    let lengths: Vec<usize> = lists.iter().map(|list| list.len()).collect();
    match lengths.first() {
        Some(first) if lengths.iter().all(|length| length == first) => Ok(*first),
        _ => Err(Error::refused(format!(
            "lists of different lengths: {lengths:?}"
        ))),
    }
}
