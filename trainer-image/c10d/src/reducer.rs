//! Gradients of all ranks, averaged while the backward pass still runs: c10d's Reducer, the engine
//! of `DistributedDataParallel` (Li et al., VLDB 2020).

use std::ptr::NonNull;
use std::time::Duration;

use tch::Tensor;
use torch_sys::C_tensor;

use crate::error::{Error, Result, check};
use crate::ffi;
use crate::group::ProcessGroup;
use crate::store::make;

/// How gradients are packed.
#[derive(Clone, Debug)]
pub struct ReducerOptions {
    /// Size of a bucket that is reduced at once.
    pub bucket_cap_bytes: usize,
    /// Size of the first bucket; a small one lets communication start early.
    pub first_bucket_bytes: usize,
    /// Gradients are views of the buckets, which saves a copy.
    pub gradient_as_bucket_view: bool,
}

impl Default for ReducerOptions {
    /// As PyTorch: 25 MiB, 1 MiB first, views.
    fn default() -> Self {
        Self {
            bucket_cap_bytes: 25 << 20,
            first_bucket_bytes: 1 << 20,
            gradient_as_bucket_view: true,
        }
    }
}

/// Averages the gradients of the parameters over the ranks of a group.
///
/// Each step, on every rank: [`zero_grad`]; for each micro-batch [`Self::prepare_for_forward`],
/// forward, (last micro-batch only) [`Self::prepare_for_backward`], [`backward`]. After the last
/// backward every parameter's gradient is the sum over ranks divided by their number.
#[derive(Debug)]
pub struct Reducer {
    raw: NonNull<ffi::RhReducer>,
}

// SAFETY: moved to another thread, it is still used by one at a time (all calls take `&mut self`).
unsafe impl Send for Reducer {}

impl Reducer {
    /// Checks that all ranks have parameters of the same shapes, and hooks into their gradients. A
    /// collective. It does not make their values equal: broadcast them first.
    ///
    /// # Errors
    /// The ranks' parameters differ, one needs no gradient, or a peer is gone.
    pub fn new(
        parameters: &[Tensor],
        group: &ProcessGroup,
        options: &ReducerOptions,
    ) -> Result<Self> {
        if parameters.is_empty() {
            return Err(Error::refused("a model without parameters"));
        }
        if let Some(index) = parameters.iter().position(|tensor| !tensor.requires_grad()) {
            return Err(Error::refused(format!(
                "parameter {index} requires no gradient"
            )));
        }
        let bytes = |size: usize| {
            i64::try_from(size).map_err(|_| Error::refused("a bucket of more than 8 EiB"))
        };
        let cap = bytes(options.bucket_cap_bytes)?;
        let first = bytes(options.first_bucket_bytes)?;
        let view = options.gradient_as_bucket_view;
        let handles: Vec<Tensor> = parameters.iter().map(Tensor::shallow_clone).collect();
        let pointers: Vec<*mut C_tensor> = handles
            .iter()
            .map(|tensor| tensor.as_ptr().cast_mut())
            .collect();
        make(|out| {
            let (list, count) = (pointers.as_ptr(), pointers.len());
            // SAFETY: tensors, list and group are live; the bridge copies the handles it keeps.
            unsafe { ffi::rh_reducer_new(list, count, group.as_ptr(), cap, first, view, out) }
        })
        .map(|raw| Self { raw })
    }

    /// Before every forward pass. A collective once, after the first step.
    ///
    /// # Errors
    /// A peer is gone.
    pub fn prepare_for_forward(&mut self) -> Result<()> {
        // SAFETY: the reducer is live and borrowed exclusively.
        check(unsafe { ffi::rh_reducer_prepare_for_forward(self.raw.as_ptr()) })
    }

    /// Before the backward pass that synchronizes: the last micro-batch of a step. Gradients of the
    /// micro-batches before it have only been added up on their own rank.
    ///
    /// # Errors
    /// The step before was not completed.
    pub fn prepare_for_backward(&mut self) -> Result<()> {
        // SAFETY: the reducer is live and borrowed exclusively.
        check(unsafe { ffi::rh_reducer_prepare_for_backward(self.raw.as_ptr()) })
    }

    /// How long the last backward pass that synchronized went on after this rank had all its own
    /// gradients: it waited for its peers, and for what was left of the reduction. `None` before the
    /// first. On a GPU it returns when the reduction has ended.
    ///
    /// # Errors
    /// The device has failed.
    pub fn waited(&mut self) -> Result<Option<Duration>> {
        let mut nanoseconds = -1;
        // SAFETY: the reducer is live and borrowed exclusively; the number outlives the call.
        check(unsafe { ffi::rh_reducer_waited(self.raw.as_ptr(), &raw mut nanoseconds) })?;
        Ok(u64::try_from(nanoseconds).ok().map(Duration::from_nanos))
    }
}

impl Drop for Reducer {
    fn drop(&mut self) {
        // SAFETY: made by the bridge and freed once. An error while closing changes nothing.
        let _ = unsafe { ffi::rh_reducer_free(self.raw.as_ptr()) };
    }
}

/// Releases the gradients of parameters, whether a Reducer made them or not.
///
/// # Errors
/// None that a caller can cause.
pub fn zero_grad(parameters: &mut [Tensor]) -> Result<()> {
    let pointers: Vec<*mut C_tensor> = parameters.iter_mut().map(Tensor::as_mut_ptr).collect();
    // SAFETY: tensors and list are live; the bridge keeps neither.
    check(unsafe { ffi::rh_zero_grad(pointers.as_ptr(), pointers.len()) })
}

/// Computes the gradients of a scalar. Errors of the Reducer's collectives come out here.
///
/// # Errors
/// A peer is gone or silent, or `loss` has no gradient.
pub fn backward(loss: &Tensor) -> Result<()> {
    // SAFETY: the tensor is live.
    check(unsafe { ffi::rh_backward(loss.as_ptr()) })
}
