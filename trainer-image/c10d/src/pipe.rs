//! A pipeline of processes, each of which computes some layers.

use std::ptr::NonNull;

use tch::Tensor;

use crate::error::{Result, check, text};
use crate::ffi;
use crate::group::ProcessGroup;
use crate::store::make;
use crate::tensors::made;

/// The connections of a process to the processes before and after it.
///
/// Activations travel forward, and the backward pass sends their gradients back. Sending does not
/// wait. All processes must make the same passes; the next backward pass is always that of the
/// oldest forward pass.
#[derive(Debug)]
pub struct Pipe {
    raw: NonNull<ffi::RhPipe>,
}

// SAFETY: the bridge locks the pipe while a thread uses it.
unsafe impl Send for Pipe {}
// SAFETY: as above.
unsafe impl Sync for Pipe {}

impl Pipe {
    /// A pipe through two groups with the same ranks, one for each direction.
    ///
    /// # Errors
    /// There is too little memory.
    pub fn new(down: &ProcessGroup, up: &ProcessGroup) -> Result<Self> {
        let (down, up) = (down.as_ptr(), up.as_ptr());
        // SAFETY: the groups are live, and the bridge keeps handles of them.
        let raw = make(|out| unsafe { ffi::rh_pipe_new(down, up, out) })?;
        Ok(Self { raw })
    }

    /// Receives the activation of the process before, of this shape and in 32 bits, on the device
    /// of `beside`. The backward pass sends its gradient there.
    ///
    /// # Errors
    /// The other process is lost or does not answer.
    pub fn receive(&self, shape: &[i64], beside: &Tensor) -> Result<Tensor> {
        let raw = self.raw.as_ptr();
        let (start, dims) = (shape.as_ptr(), shape.len());
        // SAFETY: pipe, tensor and shape are live.
        made(|out| unsafe { ffi::rh_pipe_receive(raw, start, dims, beside.as_ptr(), out) })
    }

    /// Sends an activation to the next process. Returns a zero: its backward pass receives the
    /// gradient of the activation.
    ///
    /// # Errors
    /// The other process is lost.
    pub fn send(&self, x: &Tensor) -> Result<Tensor> {
        // SAFETY: pipe and tensor are live.
        made(|out| unsafe { ffi::rh_pipe_send(self.raw.as_ptr(), x.as_ptr(), out) })
    }

    /// Waits until all tensors are sent.
    ///
    /// # Errors
    /// Another process is lost or does not answer.
    pub fn flush(&self) -> Result<()> {
        // SAFETY: the pipe is live.
        check(unsafe { ffi::rh_pipe_flush(self.raw.as_ptr()) })
    }

    /// The first error. Errors of passes may have it as their cause.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let raw = self.raw.as_ptr();
        // SAFETY: the pipe is live, and the call gets the context of its function.
        text(|context, consume| unsafe { ffi::rh_pipe_failure(raw, context, consume) })
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // SAFETY: the bridge created the pipe, and this frees it once.
        unsafe { ffi::rh_pipe_free(self.raw.as_ptr()) }
    }
}
