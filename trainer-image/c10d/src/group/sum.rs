//! Sums over the ranks through which gradients flow.

use std::ffi::c_int;
use std::time::Duration;

use tch::Tensor;
use torch_sys::C_tensor;

use super::{ProcessGroup, usable};
use crate::error::{Error, Result};
use crate::ffi;

/// An operation of the bridge on a tensor.
type Operation =
    unsafe extern "C" fn(*const ffi::RhGroup, *const C_tensor, *mut *mut C_tensor) -> c_int;

impl ProcessGroup {
    /// The sum of `own` over the ranks, as a new tensor of the same shape. The backward pass sums
    /// the gradients of all ranks in the same way, so a term in the loss of one rank contributes to
    /// the gradients of all ranks.
    ///
    /// Both sums are collectives on this group, and collectives match by the order in which ranks
    /// issue them. The order in which autograd runs nodes is a function of the graph: among the
    /// ready nodes it runs the one that was created last, and gradients of parameters before all
    /// others. Therefore all ranks must build the same graph, also a rank without samples (with
    /// tensors of 0 rows). Meanwhile they must issue no other collectives except those of the
    /// graph, such as the buckets of a [`Reducer`](crate::Reducer).
    ///
    /// # Errors
    /// A peer is lost or does not answer. In the backward pass this is an error of
    /// [`backward`](crate::backward).
    pub fn sum(&self, own: &Tensor) -> Result<Tensor> {
        self.operation(own, ffi::rh_group_sum)
    }

    /// The same values as `x`, which must be equal on all ranks. The backward pass sums the
    /// gradients of all ranks, so `x` may feed parts of a layer on several ranks: the operation f
    /// of Megatron-LM (Shoeybi et al. 2019). [`Self::sum`] has notes on the order of collectives.
    ///
    /// # Errors
    /// libtorch refuses the tensor. An error of the backward pass is that of a lost peer.
    pub fn sum_gradients(&self, x: &Tensor) -> Result<Tensor> {
        self.operation(x, ffi::rh_group_sum_gradients)
    }

    /// The sum of `own` over the ranks. The backward pass gives each rank the gradient of the sum,
    /// which must be equal on all ranks: the operation g of Megatron-LM.
    ///
    /// # Errors
    /// A peer is lost or does not answer.
    pub fn sum_values(&self, own: &Tensor) -> Result<Tensor> {
        self.operation(own, ffi::rh_group_sum_values)
    }

    fn operation(&self, own: &Tensor, operation: Operation) -> Result<Tensor> {
        usable(own)?;
        let mut made = std::ptr::null_mut();
        let result = self.collective(|group| {
            // SAFETY: group and tensor are live, `made` is valid for a write; the graph of the
            // result keeps its own handles.
            unsafe { operation(group, own.as_ptr(), &raw mut made) }
        });
        // SAFETY: the bridge created the tensor with `new`, as tch expects, and keeps no handle.
        let sum = (!made.is_null()).then(|| unsafe { Tensor::from_ptr(made) });
        result?;
        sum.ok_or_else(|| Error::refused("the bridge created no sum"))
    }
}

/// How long this process has waited since the last call: in [`ProcessGroup::sum`], forward and
/// backward, and within passes for the sums of [`CommHook::PowerSgd`](crate::CommHook::PowerSgd).
/// Over NCCL only the device waits.
#[must_use]
pub fn take_sum_wait() -> Duration {
    // SAFETY: the call only reads a counter.
    let nanoseconds = unsafe { ffi::rh_take_sum_wait() };
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(0))
}
