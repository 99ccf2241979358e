//! Optimizer updates of all parameters in a few kernels. A flag on the device can skip an update
//! without the host reading it. The same flag serves the commit of a step, loss scaling, and
//! skipped steps.

use std::ptr::null;

use tch::Tensor;

use crate::error::{Result, check};
use crate::ffi;
use crate::tensors::{pointer, pointers, same_length};

/// Controls an update on the device. Both fields are fp32 tensors of one element on the parameters'
/// device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gate<'a> {
    /// Divisor of the gradients; they are divided in place before the update.
    pub grad_scale: Option<&'a Tensor>,
    /// If it is 1, parameters and state do not change, whatever the gradients are. If it is 0, they
    /// do.
    pub found_inf: Option<&'a Tensor>,
}

/// An update of SGD, as `torch.optim.SGD` with dampening 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdUpdate {
    /// Learning rate of this update.
    pub lr: f64,
    /// Momentum; 0 means no momentum.
    pub momentum: f64,
    /// Weight decay: this times the weight is added to the gradient.
    pub weight_decay: f64,
    /// Whether to use Nesterov momentum.
    pub nesterov: bool,
}

impl SgdUpdate {
    /// Applies one update: `g ← g + weight_decay·w`, `m ← momentum·m + g`, `w ← w - lr·m`
    /// (Nesterov: `lr·(g + momentum·m)`). `momenta` must start as zeros in the parameters' memory
    /// format; without momentum the list is empty.
    ///
    /// # Errors
    /// The lists have different lengths, or the shape, memory format, kind or device of a gradient
    /// or momentum differs from its parameter.
    pub fn apply(
        self,
        parameters: &mut [Tensor],
        gradients: &[Tensor],
        momenta: &mut [Tensor],
        gate: Gate<'_>,
    ) -> Result<()> {
        let has_momentum = self.momentum != 0.0;
        let count = if has_momentum {
            same_length(&[parameters, gradients, momenta])?
        } else {
            same_length(&[parameters, gradients])?
        };
        let raw = ffi::RhSgd {
            lr: self.lr,
            momentum: self.momentum,
            weight_decay: self.weight_decay,
            nesterov: self.nesterov,
        };
        let lists = [pointers(parameters), pointers(gradients), pointers(momenta)];
        let [list, grads, buffers] = lists.each_ref().map(Vec::as_ptr);
        let buffers = if has_momentum { buffers } else { null() };
        let (scale, found_inf) = (pointer(gate.grad_scale), pointer(gate.found_inf));
        // SAFETY: tensors and lists are live and have this length; the bridge accepts null where
        // null is passed.
        check(unsafe {
            ffi::rh_fused_sgd(
                list,
                grads,
                buffers,
                count,
                &raw const raw,
                scale,
                found_inf,
            )
        })
    }
}

/// An update of AdamW (Loshchilov and Hutter, ICLR 2019), as `torch.optim.AdamW`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWUpdate {
    /// Learning rate of this update.
    pub lr: f64,
    /// Decay rate of the mean of the gradients.
    pub beta1: f64,
    /// Decay rate of the mean of the gradients' squares.
    pub beta2: f64,
    /// Constant that is added to the square root in the denominator.
    pub eps: f64,
    /// Decoupled weight decay: `w ← w - lr·weight_decay·w`.
    pub weight_decay: f64,
}

/// The moments of [`AdamWUpdate`]. They must start as zeros in the parameters' memory format.
#[derive(Debug)]
pub struct Moments<'a> {
    /// Running means of the gradients.
    pub means: &'a mut [Tensor],
    /// Running means of the gradients' squares.
    pub squares: &'a mut [Tensor],
    /// Number of applied updates: one fp32 number on the parameters' device. The kernel increments
    /// it, except if [`Gate::found_inf`] is 1.
    pub step: &'a mut Tensor,
}

impl AdamWUpdate {
    /// Applies one update to all parameters.
    ///
    /// # Errors
    /// The lists have different lengths, or the shape, memory format, kind or device of a gradient
    /// or moment differs from its parameter.
    pub fn apply(
        self,
        parameters: &mut [Tensor],
        gradients: &[Tensor],
        moments: &mut Moments<'_>,
        gate: Gate<'_>,
    ) -> Result<()> {
        let count = same_length(&[parameters, gradients, moments.means, moments.squares])?;
        let raw = ffi::RhAdamW {
            lr: self.lr,
            beta1: self.beta1,
            beta2: self.beta2,
            eps: self.eps,
            weight_decay: self.weight_decay,
        };
        let lists = [
            pointers(parameters),
            pointers(gradients),
            pointers(moments.means),
            pointers(moments.squares),
        ];
        let [list, grads, means, squares] = lists.each_ref().map(Vec::as_ptr);
        let step = moments.step.as_mut_ptr();
        let (raw, scale, found_inf) = (
            &raw const raw,
            pointer(gate.grad_scale),
            pointer(gate.found_inf),
        );
        // SAFETY: tensors and lists are live and have this length; the bridge accepts null where
        // null is passed.
        check(unsafe {
            ffi::rh_fused_adamw(
                list, grads, means, squares, count, step, raw, scale, found_inf,
            )
        })
    }
}

#[cfg(test)]
mod tests;
