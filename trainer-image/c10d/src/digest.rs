//! Digests, which show whether ranks hold the same bits.

use tch::Tensor;

use crate::error::Result;
use crate::ffi;
use crate::tensors::{made, pointers};

/// Computes one number (i64, one element, no dimension) for the bits of dense tensors whose
/// elements have 4 or 8 bytes: the sum of their 64-bit words modulo 2^64. A single different word
/// always changes it. Several different words change it except in one of 2^64 cases. The tensors'
/// device computes it, and the host does not wait.
///
/// # Errors
/// Elements have another size, or the device reports a failure.
pub fn digest(tensors: &[Tensor]) -> Result<Tensor> {
    let list = pointers(tensors);
    // SAFETY: tensors and list are live, `out` valid for a write.
    made(|out| unsafe { ffi::rh_digest_of(list.as_ptr(), list.len(), out) })
}

#[cfg(test)]
mod tests;
