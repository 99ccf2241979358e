//! Activation checkpointing: the backward pass recomputes activations instead of keeping them.

use tch::{TchError, Tensor};
use torch_sys::C_tensor;

use crate::error::Result;
use crate::tensors::made;
use crate::{ffi, segment};

/// Computes `run(activation, parameters)` and keeps only the input of all activations
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
pub fn recompute<F>(activation: &Tensor, parameters: &[Tensor], run: F) -> Result<Tensor>
where
    F: FnMut(&Tensor, Vec<Tensor>) -> std::result::Result<Tensor, TchError> + Send + 'static,
{
    let inputs: Vec<*mut C_tensor> = std::iter::once(activation)
        .chain(parameters)
        .map(|tensor| tensor.as_ptr().cast_mut())
        .collect();
    let segment = segment::raw(run);
    // SAFETY: tensors, list and segment are live. The bridge copies handles and segment, and frees
    // the segment once.
    made(|out| unsafe { ffi::rh_recompute(inputs.as_ptr(), inputs.len(), &raw const segment, out) })
}

#[cfg(test)]
mod tests;
