//! Whether ranks hold the same bits.

use tch::Tensor;

use crate::error::Result;
use crate::ffi;
use crate::tensors::{made, pointers};

/// One number (i64, one element, no dimension) for the bits of dense tensors whose elements have 4 or 8 bytes: the sum of
/// their 64-bit words modulo 2^64. A word that differs always changes it; several that differ do, but for one case in 2^64.
/// It is made on the tensors' device, and the host does not wait.
///
/// # Errors
/// Elements of another size, or the device has failed.
pub fn digest(tensors: &[Tensor]) -> Result<Tensor> {
    let list = pointers(tensors);
    // SAFETY: tensors and list are live, `out` valid for a write.
    made(|out| unsafe { ffi::rh_digest_of(list.as_ptr(), list.len(), out) })
}

#[cfg(test)]
mod tests;
