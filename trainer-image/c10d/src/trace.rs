//! Traces by Kineto, the profiler of libtorch.

use std::marker::PhantomData;
use std::path::Path;
use std::ptr::{NonNull, null_mut};

use tch::Device;

use crate::error::{Error, Result, c_string, check};
use crate::ffi;

/// Records all operations of this thread and of its backward passes. A process can have one trace
/// at a time. Dropping it discards the recording.
#[derive(Debug)]
#[must_use = "the recording ends when it is dropped"]
pub struct Trace {
    is_running: bool,
    of_thread: PhantomData<*const ()>,
}

impl Trace {
    /// Starts to record. On a GPU it also records kernels.
    ///
    /// # Errors
    /// Another trace is being recorded.
    pub fn start(device: Device) -> Result<Self> {
        // SAFETY: the call only takes a flag.
        check(unsafe { ffi::rh_trace_start(device.is_cuda()) })?;
        Ok(Self {
            is_running: true,
            of_thread: PhantomData,
        })
    }

    /// Number of operations in the recording so far.
    #[must_use]
    pub fn num_operations(&self) -> u64 {
        // SAFETY: the call only reads a counter.
        unsafe { ffi::rh_trace_num_operations() }
    }

    /// Ends the recording. Kineto then sorts the events, which takes some microseconds per
    /// operation.
    ///
    /// # Errors
    /// libtorch refuses to stop.
    pub fn stop(mut self) -> Result<Recording> {
        self.is_running = false;
        let mut raw = null_mut();
        // SAFETY: `raw` is valid for a write. The trace is not `Send`, so this is the thread that
        // started it.
        check(unsafe { ffi::rh_trace_stop(&raw mut raw) })?;
        let raw =
            NonNull::new(raw).ok_or_else(|| Error::refused("the bridge created no recording"))?;
        Ok(Recording { raw })
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if self.is_running {
            // SAFETY: null discards the recording. The trace is not `Send`, so this is the thread
            // that started it.
            let _ = unsafe { ffi::rh_trace_stop(null_mut()) };
        }
    }
}

/// The events of a trace that has ended. Another thread may write them to a file.
#[derive(Debug)]
#[must_use = "a recording that is not written is lost"]
pub struct Recording {
    raw: NonNull<ffi::RhRecording>,
}

// SAFETY: the bridge owns the events. They do not refer to the thread that recorded them, because
// Kineto copied all data when the recording ended.
unsafe impl Send for Recording {}

impl Recording {
    /// Writes the recording in the Chrome trace format, which Perfetto opens.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(self, path: &Path) -> Result<()> {
        let path = path
            .to_str()
            .ok_or_else(|| Error::refused(format!("{} is not UTF-8", path.display())))?;
        let text = c_string(path)?;
        // SAFETY: the path is NUL-terminated, and the recording is written only once, because
        // `self` is consumed.
        check(unsafe { ffi::rh_recording_write(self.raw.as_ptr(), text.as_ptr()) })?;
        // If Kineto cannot write, it only logs the error.
        if std::fs::metadata(path).is_ok_and(|file| file.len() > 0) {
            Ok(())
        } else {
            Err(Error::refused(format!("no trace was written to {path}")))
        }
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // SAFETY: no other copy of this pointer exists.
        let _ = unsafe { ffi::rh_recording_free(self.raw.as_ptr()) };
    }
}

#[cfg(test)]
mod tests;
