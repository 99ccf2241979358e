//! Counts the memory of tensors on the CPU, for tests.

use crate::ffi;

/// Counts the tensors that are created from now on. Call it before the first tensor is created.
pub fn count_memory() {
    // SAFETY: the call only replaces the allocator of later tensors.
    unsafe { ffi::rh_count_memory() }
}

/// The bytes that tensors hold, and the most that they have held since the last call.
#[must_use]
pub fn counted_memory() -> (i64, i64) {
    let (mut held, mut peak) = (0, 0);
    // SAFETY: both are valid for a write.
    unsafe { ffi::rh_counted_memory(&raw mut held, &raw mut peak) }
    (held, peak)
}
