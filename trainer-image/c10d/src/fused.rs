//! Optimizer updates of all parameters in a few kernels. A flag on the device holds them back without the host
//! knowing: the same flag serves the commit of a step, loss scaling, and steps that are skipped.

use std::ptr::null;

use tch::Tensor;

use crate::error::{Result, check};
use crate::ffi;
use crate::tensors::{pointer, pointers, same_length};

/// Whether an update is made, and of what scale its gradients are. Both are fp32 tensors of one element on the
/// parameters' device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gate<'a> {
    /// The gradients are divided by it first, in place.
    pub grad_scale: Option<&'a Tensor>,
    /// Where it is 1, parameters and state stay as they are, whatever the gradients are; where 0, they change.
    pub found_inf: Option<&'a Tensor>,
}

/// SGD, as `torch.optim.SGD` with dampening 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SgdUpdate {
    /// Learning rate.
    pub lr: f64,
    /// Momentum; 0 for none.
    pub momentum: f64,
    /// Is added to the gradient, times the weight.
    pub weight_decay: f64,
    /// Nesterov's momentum.
    pub nesterov: bool,
}

impl SgdUpdate {
    /// One update: `g ← g + weight_decay·w`, `m ← momentum·m + g`, `w ← w - lr·m` (Nesterov: `lr·(g + momentum·m)`).
    /// `momenta` begin as zeros of the parameters' memory format; without momentum there are none.
    ///
    /// # Errors
    /// Lists of different lengths; a gradient or momentum whose shape, memory format, kind or device is not its
    /// parameter's.
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
        // SAFETY: tensors and lists are live and of this length; null is allowed where it is given.
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

/// AdamW (Loshchilov and Hutter, ICLR 2019), as `torch.optim.AdamW`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWUpdate {
    /// Learning rate.
    pub lr: f64,
    /// Decay of the mean of gradients.
    pub beta1: f64,
    /// Decay of the mean of their squares.
    pub beta2: f64,
    /// Is added to the root.
    pub eps: f64,
    /// Decoupled: `w ← w - lr·weight_decay·w`.
    pub weight_decay: f64,
}

/// The moments of [`AdamWUpdate`], which begin as zeros of the parameters' memory format.
#[derive(Debug)]
pub struct Moments<'a> {
    /// Means of the gradients.
    pub means: &'a mut [Tensor],
    /// Means of their squares.
    pub squares: &'a mut [Tensor],
    /// How many updates were made: one fp32 number on the parameters' device. It counts on by itself, except where
    /// [`Gate::found_inf`] is 1.
    pub step: &'a mut Tensor,
}

impl AdamWUpdate {
    /// One update.
    ///
    /// # Errors
    /// Lists of different lengths; a gradient or moment whose shape, memory format, kind or device is not its
    /// parameter's.
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
        // SAFETY: tensors and lists are live and of this length; null is allowed where it is given.
        check(unsafe {
            ffi::rh_fused_adamw(
                list, grads, means, squares, count, step, raw, scale, found_inf,
            )
        })
    }
}

#[cfg(test)]
mod tests;
