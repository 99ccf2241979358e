//! A sum over the ranks that gradients flow through.

use std::time::Duration;

use tch::Tensor;

use super::{ProcessGroup, usable};
use crate::error::{Error, Result};
use crate::ffi;

impl ProcessGroup {
    /// The sum of `own` over the ranks, as a new tensor of the same shape. The backward pass sums the gradients of all
    /// ranks in the same way, so what each rank adds to its own loss counts for the parts of all ranks.
    ///
    /// Both sums are collectives on this group, and collectives match by the order in which ranks issue them. Autograd
    /// runs the nodes of a graph in an order that follows from the graph alone: of those that are ready, the one that
    /// was made last, and gradients of parameters before all others. Therefore all ranks must build the same
    /// graph, also a rank without samples (with tensors of 0 rows), and issue nothing else meanwhile except from that
    /// graph, such as the buckets of a [`Reducer`](crate::Reducer).
    ///
    /// # Errors
    /// A peer is gone or silent. In the backward pass that is an error of [`backward`](crate::backward).
    pub fn sum(&self, own: &Tensor) -> Result<Tensor> {
        usable(own)?;
        let mut made = std::ptr::null_mut();
        let result = self.collective(|group| {
            // SAFETY: group and tensor are live, `made` is valid for a write; the graph of the result keeps handles
            // of its own.
            unsafe { ffi::rh_group_sum(group, own.as_ptr(), &raw mut made) }
        });
        // SAFETY: the bridge has made it with `new`, as tch expects, and keeps no handle.
        let sum = (!made.is_null()).then(|| unsafe { Tensor::from_ptr(made) });
        result?;
        sum.ok_or_else(|| Error::refused("no sum was made"))
    }
}

/// For how long this process has waited in [`ProcessGroup::sum`], forward and backward, and within passes for the sums of
/// [`CommHook::PowerSgd`](crate::CommHook::PowerSgd), since the last call. Over NCCL
/// only the device waits.
#[must_use]
pub fn take_sum_wait() -> Duration {
    // SAFETY: reads a counter.
    let nanoseconds = unsafe { ffi::rh_take_sum_wait() };
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(0))
}
