//! Mixed precision, and the switches that trade precision or reproducibility for speed.

use std::marker::PhantomData;

use tch::{Device, Kind};

use crate::error::{Error, Result, check};
use crate::ffi;

/// While it lives, operations of this thread that gain from it run in bf16 or fp16 (matrix products, convolutions,
/// attention), and those that need fp32 do not (softmax, norms), as with `torch.autocast`. A loss on a GPU is computed in
/// the type of its scores, so give it scores in fp32. Run the forward pass and the loss within it, the backward pass
/// after it. Guards nest. The casts of weights are kept until the outermost one ends, so it must end before the weights
/// change.
#[derive(Debug)]
#[must_use = "it ends when it is dropped"]
pub struct Autocast {
    before: ffi::RhAutocast,
    /// The state is the thread's.
    of_thread: PhantomData<*const ()>,
}

impl Autocast {
    /// `kind`: [`Kind::BFloat16`], [`Kind::Half`], or [`Kind::Float`] to switch autocast off within.
    ///
    /// # Errors
    /// Another kind, or a device that is neither CPU nor CUDA.
    pub fn enter(device: Device, kind: Kind) -> Result<Self> {
        let cuda = match device {
            Device::Cpu => false,
            Device::Cuda(_) => true,
            _ => return Err(Error::refused(format!("autocast on {device:?}"))),
        };
        // libtorch's numbers of the types.
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
        // SAFETY: of the same thread, for the guard is not `Send`. It sets flags, which does not fail.
        let _ = unsafe { ffi::rh_autocast_leave(&raw const self.before) };
    }
}

/// Switches of the whole process. The default is PyTorch's, but for TF32 in matrix products, which is off there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numerics {
    /// fp32 matrix products and convolutions on tensor cores, with 10 bits of mantissa.
    pub tf32: bool,
    /// cuDNN measures its algorithms for each new shape and takes the fastest. The choice can differ between runs.
    pub cudnn_benchmark: bool,
    /// Only deterministic kernels; an operation that has none is an error. Matrix products on CUDA also need the
    /// environment variable `CUBLAS_WORKSPACE_CONFIG=:4096:8`, set before the first one.
    pub deterministic: bool,
}

impl Numerics {
    /// Sets them.
    ///
    /// # Errors
    /// None that a caller can cause.
    pub fn apply(self) -> Result<()> {
        let raw = ffi::RhNumerics {
            tf32: self.tf32,
            benchmark: self.cudnn_benchmark,
            deterministic: self.deterministic,
        };
        // SAFETY: reads the struct.
        check(unsafe { ffi::rh_numerics_set(&raw const raw) })
    }

    /// Those that are set.
    ///
    /// # Errors
    /// None that a caller can cause.
    pub fn current() -> Result<Self> {
        let mut raw = ffi::RhNumerics::default();
        // SAFETY: valid for a write.
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
