//! Gradients of all ranks, averaged while the backward pass still runs: c10d's Reducer, the engine
//! of `DistributedDataParallel` (Li et al., VLDB 2020).

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::time::Duration;

use crate::error::{Error, Result, check};
use crate::ffi;
use crate::group::ProcessGroup;
use crate::store::make;
use crate::tensors::{made, pointers};
use tch::Tensor;

mod hook;

pub use hook::{CommHook, PowerSgd};

/// How gradients are packed.
#[derive(Clone, Debug)]
pub struct ReducerOptions {
    /// Size of a bucket that is reduced at once.
    pub bucket_cap_bytes: usize,
    /// Size of the first bucket; a small one lets communication start early.
    pub first_bucket_bytes: usize,
    /// Gradients are views of the buckets, which saves a copy.
    pub gradient_as_bucket_view: bool,
    /// What of the gradients travels.
    pub hook: CommHook,
    /// Indices of the parameters whose gradients [`CommHook::PowerSgd`] never compresses.
    pub whole: Vec<usize>,
    /// Parameters that the loss does not depend on get no gradient, instead of making the pass wait for them for
    /// ever. Costs a walk through the graph and a small collective per pass: see
    /// [`Reducer::prepare_for_backward_from`].
    pub find_unused_parameters: bool,
    /// Each pass uses the same parameters, each of them as often as in the first pass, whose outputs the Reducer
    /// needs: see [`Reducer::prepare_for_backward_from`].
    pub static_graph: bool,
    /// The layout of an earlier Reducer over parameters of the same shapes: see [`Reducer::buckets`]. All ranks
    /// must give the same, or none. Then the first pass has the final buckets, and none are rebuilt.
    pub buckets: Option<Vec<Vec<usize>>>,
}

impl Default for ReducerOptions {
    /// As PyTorch: 25 MiB, 1 MiB first, views.
    fn default() -> Self {
        Self {
            bucket_cap_bytes: 25 << 20,
            first_bucket_bytes: 1 << 20,
            gradient_as_bucket_view: true,
            hook: CommHook::None,
            whole: Vec::new(),
            find_unused_parameters: false,
            static_graph: false,
            buckets: None,
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
        let layout = options.buckets.as_deref().unwrap_or_default();
        let sizes: Vec<usize> = layout.iter().map(Vec::len).collect();
        let indices = layout.concat();
        let raw_options = ffi::RhReducerOptions {
            bucket_bytes: bytes(options.bucket_cap_bytes)?,
            first_bucket_bytes: bytes(options.first_bucket_bytes)?,
            view: options.gradient_as_bucket_view,
            find_unused: options.find_unused_parameters,
            static_graph: options.static_graph,
            hook: options.hook.code(),
            power_sgd: options.hook.power_sgd(),
            whole_count: options.whole.len(),
            whole_indices: options.whole.as_ptr(),
            bucket_count: sizes.len(),
            bucket_sizes: sizes.as_ptr(),
            bucket_indices: indices.as_ptr(),
        };
        let pointers = pointers(parameters);
        make(|out| {
            let (list, count) = (pointers.as_ptr(), pointers.len());
            let options = &raw const raw_options;
            // SAFETY: tensors, lists, options and group are live; the bridge copies the handles it keeps.
            unsafe { ffi::rh_reducer_new(list, count, group.as_ptr(), options, out) }
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
        self.prepare_for_backward_from(&[])
    }

    /// [`Self::prepare_for_backward`] with what the forward pass has computed, say the loss. A Reducer with
    /// [`ReducerOptions::find_unused_parameters`] needs it to see which parameters get no gradient, and one with
    /// [`ReducerOptions::static_graph`] for its first pass; the first output is then what [`backward`] begins from.
    ///
    /// # Errors
    /// The step before was not completed, or outputs are missing.
    pub fn prepare_for_backward_from(&mut self, outputs: &[Tensor]) -> Result<()> {
        let outputs = pointers(outputs);
        let (raw, list, count) = (self.raw.as_ptr(), outputs.as_ptr(), outputs.len());
        // SAFETY: the reducer is live and borrowed exclusively; tensors and list are live.
        check(unsafe { ffi::rh_reducer_prepare_for_backward(raw, list, count) })
    }

    /// The parameters' indices, bucket by bucket in the order in which buckets are reduced. Once they are final
    /// they can go into [`ReducerOptions::buckets`] of the Reducers of later generations.
    ///
    /// # Errors
    /// None that a caller can cause.
    pub fn buckets(&self) -> Result<Vec<Vec<usize>>> {
        let raw = self.raw.as_ptr();
        // SAFETY: the reducer is live; `consume` and its context are those that `collect` gives.
        collect(|context, consume| unsafe { ffi::rh_reducer_buckets(raw, context, consume) })
    }

    /// Whether [`Self::buckets`] will not change any more: from the second [`Self::prepare_for_forward`] on (the third
    /// with [`ReducerOptions::static_graph`]), at once if a layout was given, or with
    /// [`ReducerOptions::find_unused_parameters`], where the first one stays.
    #[must_use]
    pub fn has_final_buckets(&self) -> bool {
        // SAFETY: the reducer is live.
        unsafe { ffi::rh_reducer_has_final_buckets(self.raw.as_ptr()) }
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

    /// The backward pass that synchronized is over: from now on [`Self::waited_before`] can tell of it. Without this
    /// call it can from the next [`Self::prepare_for_forward`] on.
    ///
    /// # Errors
    /// The device has failed.
    pub fn end_pass(&mut self) -> Result<()> {
        // SAFETY: the reducer is live and borrowed exclusively.
        check(unsafe { ffi::rh_reducer_end_pass(self.raw.as_ptr()) })
    }

    /// [`digest`](crate::digest) of what the sums of the last pass have left, which is the same on all ranks. The host does
    /// not wait.
    ///
    /// # Errors
    /// Gradients of a kind that has no digest, or the device has failed.
    pub fn digest(&self) -> Result<Tensor> {
        // SAFETY: the reducer is live, `out` valid for a write.
        made(|out| unsafe { ffi::rh_reducer_digest(self.raw.as_ptr(), out) })
    }

    /// [`Self::waited`] of the oldest pass that has ended on the device and was not told of, without waiting for
    /// the device. `None` if there is none: a GPU's pass ends while the host prepares later ones. A pass counts
    /// from [`Self::end_pass`] on; of passes that nobody asks for the last 8 are kept.
    ///
    /// # Errors
    /// The device has failed.
    pub fn waited_before(&mut self) -> Result<Option<Duration>> {
        let mut nanoseconds = -1;
        // SAFETY: the reducer is live and borrowed exclusively; the number outlives the call.
        check(unsafe { ffi::rh_reducer_waited_before(self.raw.as_ptr(), &raw mut nanoseconds) })?;
        Ok(u64::try_from(nanoseconds).ok().map(Duration::from_nanos))
    }
}

/// What [`CommHook::PowerSgd`] keeps from pass to pass. With other hooks these calls do nothing.
impl Reducer {
    /// The last pass is not used: what it has left over, and what all passes before it have, goes into no later one. All
    /// ranks must call it after the same pass, or the ranks' gradients of later passes are garbage.
    ///
    /// # Errors
    /// The device has failed.
    pub fn forget(&mut self) -> Result<()> {
        // SAFETY: the reducer is live and borrowed exclusively.
        check(unsafe { ffi::rh_reducer_forget(self.raw.as_ptr()) })
    }

    /// The gradients of later passes are larger by this factor than those before, since their loss is.
    ///
    /// # Errors
    /// The device has failed.
    pub fn rescale(&mut self, factor: f64) -> Result<()> {
        // SAFETY: the reducer is live and borrowed exclusively.
        check(unsafe { ffi::rh_reducer_rescale(self.raw.as_ptr(), factor) })
    }

    /// How many bytes of gradients this rank has given to collectives in its last pass, as [`CommHook::payload_bytes`]
    /// foretells them. Only [`CommHook::PowerSgd`] counts them.
    #[must_use]
    pub fn payload_bytes(&self) -> Option<u64> {
        // SAFETY: the reducer is live.
        let bytes = unsafe { ffi::rh_reducer_payload_bytes(self.raw.as_ptr()) };
        u64::try_from(bytes).ok()
    }
}

impl Drop for Reducer {
    fn drop(&mut self) {
        // SAFETY: made by the bridge and freed once. An error while closing changes nothing.
        let _ = unsafe { ffi::rh_reducer_free(self.raw.as_ptr()) };
    }
}

/// Computes the gradients of a loss on this rank alone, and returns the layout that a Reducer with these options
/// would come to after such a pass: see [`ReducerOptions::buckets`]. Gradients come in the same order on all ranks
/// that run the same program, so each can find the layout by itself, before it has peers. Parameters on which the
/// loss does not depend come last.
///
/// # Errors
/// The loss has no gradient, or a parameter requires none.
pub fn layout(
    parameters: &[Tensor],
    loss: &Tensor,
    options: &ReducerOptions,
) -> Result<Vec<Vec<usize>>> {
    let first = bytes(options.first_bucket_bytes)?;
    let cap = bytes(options.bucket_cap_bytes)?;
    let pointers = pointers(parameters);
    let (list, count) = (pointers.as_ptr(), pointers.len());
    let loss = loss.as_ptr();
    // SAFETY: tensors and list are live; `consume` and its context are those that `collect` gives.
    collect(|context, consume| unsafe {
        ffi::rh_layout(list, count, loss, first, cap, context, consume)
    })
}

fn bytes(size: usize) -> Result<i64> {
    i64::try_from(size).map_err(|_| Error::refused("a bucket of more than 8 EiB"))
}

/// What a call of the bridge tells of buckets, one after the other, before it returns.
fn collect(
    call: impl FnOnce(*mut c_void, extern "C" fn(*mut c_void, *const usize, usize)) -> c_int,
) -> Result<Vec<Vec<usize>>> {
    extern "C" fn consume(context: *mut c_void, indices: *const usize, length: usize) {
        // SAFETY: `context` is the vector below; C++ passes `length` readable indices.
        unsafe {
            let buckets = &mut *context.cast::<Vec<Vec<usize>>>();
            buckets.push(std::slice::from_raw_parts(indices, length).to_vec());
        }
    }
    let mut buckets = Vec::<Vec<usize>>::new();
    check(call(std::ptr::from_mut(&mut buckets).cast(), consume))?;
    Ok(buckets)
}

/// Releases the gradients of parameters, whether a Reducer made them or not.
///
/// # Errors
/// None that a caller can cause.
pub fn zero_grad(parameters: &mut [Tensor]) -> Result<()> {
    let pointers = pointers(parameters);
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
