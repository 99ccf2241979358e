//! c10d's Reducer, the engine of `DistributedDataParallel` (Li et al., VLDB 2020): it averages the
//! gradients of all ranks while the backward pass still runs.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::time::Duration;

use crate::error::{Error, Result, check};
use crate::ffi;
use crate::group::ProcessGroup;
use crate::store::make;
use crate::tensors::{made, pointers, same_length};
use tch::Tensor;

mod hook;

pub use hook::{CommHook, PowerSgd};

/// How gradients are packed and sent.
#[derive(Clone, Debug)]
pub struct ReducerOptions {
    /// Size in bytes of a bucket, which is reduced in one collective.
    pub bucket_cap_bytes: usize,
    /// Size in bytes of the first bucket. A small first bucket lets communication start early.
    pub first_bucket_bytes: usize,
    /// Whether gradients are views of the buckets, which saves a copy.
    pub gradient_as_bucket_view: bool,
    /// The form in which gradients are sent.
    pub hook: CommHook,
    /// Indices of the parameters whose gradients [`CommHook::PowerSgd`] never compresses.
    pub whole: Vec<usize>,
    /// Whether to find parameters on which the loss does not depend. They get no gradient; without
    /// this option the pass would wait for their gradients indefinitely. It costs a walk through
    /// the graph and a small collective per pass: see [`Reducer::prepare_for_backward_from`].
    pub find_unused_parameters: bool,
    /// Promises that each pass uses each parameter as often as the first pass. The Reducer needs
    /// the outputs of the first pass: see [`Reducer::prepare_for_backward_from`].
    pub static_graph: bool,
    /// The layout of an earlier Reducer for parameters of the same shapes: see
    /// [`Reducer::buckets`]. All ranks must pass the same layout, or none. With a layout the first
    /// pass already has the final buckets, which are not rebuilt.
    pub buckets: Option<Vec<Vec<usize>>>,
}

impl Default for ReducerOptions {
    /// The defaults of PyTorch: buckets of 25 MiB, a first bucket of 1 MiB, and views.
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
/// In each step every rank calls [`zero_grad`], and then for each micro-batch
/// [`Self::prepare_for_forward`], the forward pass, [`Self::prepare_for_backward`] (only for the
/// last micro-batch), and [`backward`]. After the last backward pass the gradient of every
/// parameter is the sum over the ranks divided by their number.
#[derive(Debug)]
pub struct Reducer {
    raw: NonNull<ffi::RhReducer>,
}

// SAFETY: only one thread at a time uses the Reducer, because all calls that change it take
// `&mut self`.
unsafe impl Send for Reducer {}

impl Reducer {
    /// Checks that all ranks have parameters of the same shapes, and installs hooks on their
    /// gradients. A collective. It does not make the parameters' values equal, so broadcast them
    /// first.
    ///
    /// # Errors
    /// The ranks' parameters differ, a parameter requires no gradient, or a peer is lost.
    pub fn new(
        parameters: &[Tensor],
        group: &ProcessGroup,
        options: &ReducerOptions,
    ) -> Result<Self> {
        if parameters.is_empty() {
            return Err(Error::refused("the model has no parameters"));
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
            // SAFETY: tensors, lists, options and group are live; the bridge copies the handles
            // that it keeps.
            unsafe { ffi::rh_reducer_new(list, count, group.as_ptr(), options, out) }
        })
        .map(|raw| Self { raw })
    }

    /// Must be called before every forward pass. It is a collective once, after the first step.
    ///
    /// # Errors
    /// A peer is lost.
    pub fn prepare_for_forward(&mut self) -> Result<()> {
        // SAFETY: the reducer is live and borrowed exclusively.
        check(unsafe { ffi::rh_reducer_prepare_for_forward(self.raw.as_ptr()) })
    }

    /// Must be called before the backward pass that synchronizes, which is that of a step's last
    /// micro-batch. Gradients of earlier micro-batches accumulate on their own rank.
    ///
    /// # Errors
    /// The previous step is incomplete.
    pub fn prepare_for_backward(&mut self) -> Result<()> {
        self.prepare_for_backward_from(&[])
    }

    /// Like [`Self::prepare_for_backward`], with outputs of the forward pass, such as the loss. A
    /// Reducer with [`ReducerOptions::find_unused_parameters`] needs the outputs to find parameters
    /// without a gradient. A Reducer with [`ReducerOptions::static_graph`] needs them for its first
    /// pass; [`backward`] must then start from the first output.
    ///
    /// # Errors
    /// The previous step is incomplete, or outputs are missing.
    pub fn prepare_for_backward_from(&mut self, outputs: &[Tensor]) -> Result<()> {
        let outputs = pointers(outputs);
        let (raw, list, count) = (self.raw.as_ptr(), outputs.as_ptr(), outputs.len());
        // SAFETY: the reducer is live and borrowed exclusively; tensors and list are live.
        check(unsafe { ffi::rh_reducer_prepare_for_backward(raw, list, count) })
    }

    /// The indices of the parameters in each bucket, in the order in which buckets are reduced.
    /// When the layout is final, it can be [`ReducerOptions::buckets`] of Reducers of later
    /// generations.
    ///
    /// # Errors
    /// libtorch fails; no argument can cause this.
    pub fn buckets(&self) -> Result<Vec<Vec<usize>>> {
        let raw = self.raw.as_ptr();
        // SAFETY: the reducer is live; `collect` provides `consume` and its context.
        collect(|context, consume| unsafe { ffi::rh_reducer_buckets(raw, context, consume) })
    }

    /// Whether [`Self::buckets`] is final. It is final after the second
    /// [`Self::prepare_for_forward`] (the third with [`ReducerOptions::static_graph`]). It is final
    /// at once if a layout was given, or with [`ReducerOptions::find_unused_parameters`], which
    /// keeps the first layout.
    #[must_use]
    pub fn has_final_buckets(&self) -> bool {
        // SAFETY: the reducer is live.
        unsafe { ffi::rh_reducer_has_final_buckets(self.raw.as_ptr()) }
    }

    /// How long the last synchronizing backward pass continued after this rank had computed all its
    /// own gradients: it waited for its peers and for the rest of the reduction. `None` before the
    /// first such pass. On a GPU the call returns when the reduction has ended.
    ///
    /// # Errors
    /// The device reports a failure.
    pub fn waited(&mut self) -> Result<Option<Duration>> {
        let mut nanoseconds = -1;
        // SAFETY: the reducer is live and borrowed exclusively; `nanoseconds` outlives the call.
        check(unsafe { ffi::rh_reducer_waited(self.raw.as_ptr(), &raw mut nanoseconds) })?;
        Ok(u64::try_from(nanoseconds).ok().map(Duration::from_nanos))
    }

    /// Marks the end of the synchronizing backward pass, so that [`Self::waited_before`] can return
    /// its wait. Without this call, it can do so after the next [`Self::prepare_for_forward`].
    ///
    /// # Errors
    /// The device reports a failure.
    pub fn end_pass(&mut self) -> Result<()> {
        // SAFETY: the reducer is live and borrowed exclusively.
        check(unsafe { ffi::rh_reducer_end_pass(self.raw.as_ptr()) })
    }

    /// The [`digest`](crate::digest) of the sums of the last pass, which is the same on all ranks.
    /// The host does not wait.
    ///
    /// # Errors
    /// Gradients are of a kind without a digest, or the device reports a failure.
    pub fn digest(&self) -> Result<Tensor> {
        // SAFETY: the reducer is live, `out` valid for a write.
        made(|out| unsafe { ffi::rh_reducer_digest(self.raw.as_ptr(), out) })
    }

    /// The wait ([`Self::waited`]) of the oldest pass that has ended on the device and that this
    /// function has not returned yet. It does not wait for the device. `None` if there is no such
    /// pass: a pass on a GPU ends while the host prepares later passes. A pass is available after
    /// [`Self::end_pass`]; the last 8 passes are kept.
    ///
    /// # Errors
    /// The device reports a failure.
    pub fn waited_before(&mut self) -> Result<Option<Duration>> {
        let mut nanoseconds = -1;
        // SAFETY: the reducer is live and borrowed exclusively; `nanoseconds` outlives the call.
        check(unsafe { ffi::rh_reducer_waited_before(self.raw.as_ptr(), &raw mut nanoseconds) })?;
        Ok(u64::try_from(nanoseconds).ok().map(Duration::from_nanos))
    }
}

/// The state of [`CommHook::PowerSgd`] between passes. With other hooks these calls have no effect.
impl Reducer {
    /// Must be called if the last pass is not used. It discards the compression errors of this and
    /// of all earlier passes. All ranks must call it after the same pass; otherwise the gradients
    /// of later passes are garbage.
    ///
    /// # Errors
    /// The device reports a failure.
    pub fn forget(&mut self) -> Result<()> {
        // SAFETY: the reducer is live and borrowed exclusively.
        check(unsafe { ffi::rh_reducer_forget(self.raw.as_ptr()) })
    }

    /// Must be called if the loss of later passes is scaled by `factor` relative to earlier passes.
    ///
    /// # Errors
    /// The device reports a failure.
    pub fn rescale(&mut self, factor: f64) -> Result<()> {
        // SAFETY: the reducer is live and borrowed exclusively.
        check(unsafe { ffi::rh_reducer_rescale(self.raw.as_ptr(), factor) })
    }

    /// Number of bytes of gradients that this rank has passed to collectives in its last pass;
    /// [`CommHook::payload_bytes`] computes it in advance. Only [`CommHook::PowerSgd`] counts it.
    #[must_use]
    pub fn payload_bytes(&self) -> Option<u64> {
        // SAFETY: the reducer is live.
        let bytes = unsafe { ffi::rh_reducer_payload_bytes(self.raw.as_ptr()) };
        u64::try_from(bytes).ok()
    }
}

impl Drop for Reducer {
    fn drop(&mut self) {
        // SAFETY: the bridge created the reducer, and this frees it once. An error while closing
        // has no effect.
        let _ = unsafe { ffi::rh_reducer_free(self.raw.as_ptr()) };
    }
}

/// Computes the gradients of a loss on this rank only, and returns the layout that a Reducer with
/// these options would build after such a pass: see [`ReducerOptions::buckets`]. Ranks that run the
/// same program compute gradients in the same order, so each rank can find the layout before it has
/// peers. Parameters on which the loss does not depend come last.
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
    // SAFETY: tensors and list are live; `collect` provides `consume` and its context.
    collect(|context, consume| unsafe {
        ffi::rh_layout(list, count, loss, first, cap, context, consume)
    })
}

fn bytes(size: usize) -> Result<i64> {
    i64::try_from(size).map_err(|_| Error::refused("a bucket of more than 8 EiB"))
}

/// Collects the buckets that a call of the bridge passes to a callback.
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

/// Releases the gradients of parameters, with or without a Reducer.
///
/// # Errors
/// libtorch fails; no argument can cause this.
pub fn zero_grad(parameters: &mut [Tensor]) -> Result<()> {
    let pointers = pointers(parameters);
    // SAFETY: tensors and list are live; the bridge keeps neither.
    check(unsafe { ffi::rh_zero_grad(pointers.as_ptr(), pointers.len()) })
}

/// Sets the gradient of each tensor, which shares its memory with the given one.
///
/// # Errors
/// The lists have different lengths, or a gradient differs from its tensor in shape or type.
pub fn set_grad(tensors: &mut [Tensor], gradients: &[Tensor]) -> Result<()> {
    let count = same_length(&[tensors, gradients])?;
    let (tensors, gradients) = (pointers(tensors), pointers(gradients));
    // SAFETY: tensors and lists are live; the bridge copies handles of the gradients.
    check(unsafe { ffi::rh_set_grad(tensors.as_ptr(), gradients.as_ptr(), count) })
}

/// Computes the gradients of a scalar. Errors of the Reducer's collectives are errors of this call.
///
/// # Errors
/// A peer is lost or does not answer, or `loss` has no gradient.
pub fn backward(loss: &Tensor) -> Result<()> {
    // SAFETY: the tensor is live.
    check(unsafe { ffi::rh_backward(loss.as_ptr()) })
}
