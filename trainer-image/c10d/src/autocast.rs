//! Mixed precision, and the process-wide switches that trade precision or reproducibility for
//! speed.

use std::marker::PhantomData;

use tch::{Device, Kind};

use crate::error::{Error, Result, check};
use crate::ffi;

/// A guard for mixed precision. While it lives, matrix products, convolutions and attention of this
/// thread run in bf16 or fp16, and operations that need fp32 (softmax, norms) do not, as with
/// `torch.autocast`. A loss on a GPU is computed in the type of its scores, so pass scores in fp32.
/// Run the forward pass and the loss within the guard, and the backward pass after it. Guards can
/// be nested. libtorch caches casts of weights until the outermost guard ends, so it must end
/// before the weights change.
#[derive(Debug)]
#[must_use = "it ends when it is dropped"]
pub struct Autocast {
    before: ffi::RhAutocast,
    /// Autocast is a state of the thread, so the guard must not be `Send`.
    of_thread: PhantomData<*const ()>,
}

impl Autocast {
    /// Enters autocast. `kind` is [`Kind::BFloat16`], [`Kind::Half`], or [`Kind::Float`] to switch
    /// autocast off while the guard lives.
    ///
    /// # Errors
    /// The kind is another one, or the device is neither CPU nor CUDA.
    pub fn enter(device: Device, kind: Kind) -> Result<Self> {
        let cuda = match device {
            Device::Cpu => false,
            Device::Cuda(_) => true,
            _ => return Err(Error::refused(format!("autocast on {device:?}"))),
        };
        // The numbers are libtorch's scalar types.
        let (enabled, dtype) = match kind {
            Kind::BFloat16 => (true, 15),
            Kind::Half => (true, 5),
            Kind::Float => (false, 6),
            _ => return Err(Error::refused(format!("autocast to {kind:?}"))),
        };
        let mut before = ffi::RhAutocast::default();
        // SAFETY: `before` is valid for a write.
        check(unsafe { ffi::rh_autocast_enter(cuda, enabled, dtype, &raw mut before) })?;
        Ok(Self {
            before,
            of_thread: PhantomData,
        })
    }
}

impl Drop for Autocast {
    fn drop(&mut self) {
        // SAFETY: this is the thread that entered, because the guard is not `Send`. The call only
        // sets flags and does not fail.
        let _ = unsafe { ffi::rh_autocast_leave(&raw const self.before) };
    }
}

/// Switches of the whole process. They start with PyTorch's defaults, where TF32 is off for matrix
/// products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numerics {
    /// Run fp32 matrix products and convolutions on tensor cores, with 10 bits of mantissa.
    pub tf32: bool,
    /// Let cuDNN measure its algorithms for each new shape and use the fastest. The choice can
    /// differ between runs.
    pub cudnn_benchmark: bool,
    /// Use only deterministic kernels; an operation without one is an error. Matrix products on
    /// CUDA also need the environment variable `CUBLAS_WORKSPACE_CONFIG=:4096:8` before the first
    /// product.
    pub deterministic: bool,
}

impl Numerics {
    /// Sets the switches of this process.
    ///
    /// # Errors
    /// libtorch fails; no argument can cause this.
    pub fn apply(self) -> Result<()> {
        let raw = ffi::RhNumerics {
            tf32: self.tf32,
            benchmark: self.cudnn_benchmark,
            deterministic: self.deterministic,
        };
        // SAFETY: the bridge only reads the struct.
        check(unsafe { ffi::rh_numerics_set(&raw const raw) })
    }

    /// The current switches of this process.
    ///
    /// # Errors
    /// libtorch fails; no argument can cause this.
    pub fn current() -> Result<Self> {
        let mut raw = ffi::RhNumerics::default();
        // SAFETY: `raw` is valid for a write.
        check(unsafe { ffi::rh_numerics_get(&raw mut raw) })?;
        Ok(Self {
            tf32: raw.tf32,
            cudnn_benchmark: raw.benchmark,
            deterministic: raw.deterministic,
        })
    }
}

#[cfg(test)]
mod tests;
