//! Activation checkpointing: the backward pass recomputes activations instead of keeping them.

use std::any::Any;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tch::{TchError, Tensor};
use torch_sys::C_tensor;

use crate::error::Result;
use crate::ffi;
use crate::tensors::made;

type Segment = Box<dyn FnMut(&Tensor, Vec<Tensor>) -> std::result::Result<Tensor, TchError> + Send>;

/// Computes `segment(activation, parameters)` and keeps only the input of all activations
/// (activation checkpointing; Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost").
/// The backward pass runs the segment again, with the autocast of the first run, and then computes
/// its gradients. Peak memory falls from the activations of all segments to the inputs of all
/// segments and the activations of one segment. The cost is a second forward pass.
///
/// The outer backward pass accumulates the gradients of `parameters` once per call, through their
/// own accumulators. So the hooks of a [`Reducer`](crate::Reducer) run as without recomputation,
/// with a static graph or without, also for a parameter that is used elsewhere, too.
///
/// The segment must be a function of its arguments: it must not capture tensors that need a
/// gradient, must not change its arguments, and must draw the same random numbers each time. It is
/// dropped after the backward pass, or with the graph. On a GPU the second run uses a thread of
/// libtorch.
///
/// If no gradient is required, the segment runs once and is dropped.
///
/// # Errors
/// The segment fails or panics. An error or a panic of the second run is an error of
/// [`backward`](crate::backward), and so is an input that was changed in place after the first run.
pub fn recompute<F>(activation: &Tensor, parameters: &[Tensor], segment: F) -> Result<Tensor>
where
    F: FnMut(&Tensor, Vec<Tensor>) -> std::result::Result<Tensor, TchError> + Send + 'static,
{
    let segment: Segment = Box::new(segment);
    let inputs: Vec<*mut C_tensor> = std::iter::once(activation)
        .chain(parameters)
        .map(|tensor| tensor.as_ptr().cast_mut())
        .collect();
    let segment = ffi::RhSegment {
        context: Box::into_raw(Box::new(segment)).cast(),
        run,
        free,
    };
    // SAFETY: tensors, list and segment are live. The bridge copies handles and segment, and frees
    // the segment once.
    made(|out| unsafe { ffi::rh_recompute(inputs.as_ptr(), inputs.len(), &raw const segment, out) })
}

extern "C" fn run(
    context: *mut c_void,
    inputs: *const *mut C_tensor,
    count: usize,
    output: *mut *mut C_tensor,
    words: *mut ffi::RhWords,
) -> bool {
    // SAFETY: C++ passes `count` live tensors and the context that `recompute` created. It runs a
    // segment on one thread at a time.
    let (segment, inputs) = unsafe {
        (
            &mut *context.cast::<Segment>(),
            std::slice::from_raw_parts(inputs, count),
        )
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the tensors are live; the handles are copied.
        let handle = |raw: &*mut C_tensor| unsafe { Tensor::clone_from_ptr(*raw) };
        let (activation, parameters) = inputs
            .split_first()
            .ok_or_else(|| TchError::Torch("the segment has no input".to_owned()))?;
        segment(&handle(activation), parameters.iter().map(handle).collect())
    }));
    let failure = match outcome {
        Ok(Ok(tensor)) => {
            // SAFETY: `output` is valid for a write. C++ takes ownership of the tensor, which tch
            // created with C++'s `new`.
            unsafe { *output = ManuallyDrop::new(tensor).as_ptr().cast_mut() };
            return true;
        }
        Ok(Err(error)) => error.to_string(),
        Err(panic) => format!("panic in a segment: {}", panic_message(&*panic)),
    };
    // SAFETY: `words` lives during this call; the text is copied.
    unsafe { ffi::rh_segment_failed(words, failure.as_ptr().cast(), failure.len()) };
    false
}

extern "C" fn free(context: *mut c_void) {
    // SAFETY: `recompute` created the context, and this frees it once. A panic must not unwind into
    // C++.
    let _ = catch_unwind(AssertUnwindSafe(|| unsafe {
        drop(Box::from_raw(context.cast::<Segment>()));
    }));
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a message")
}

#[cfg(test)]
mod tests;
