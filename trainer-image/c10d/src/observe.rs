//! What an operator wants to know: memory, versions, traces.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::path::Path;

use tch::Device;

use crate::error::{Error, Result, c_string, check};
use crate::ffi;

/// Memory of one GPU that libtorch's allocator has, in bytes. What NCCL, cuDNN and the driver take is not in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    /// In tensors.
    pub allocated: u64,
    /// Most that was in tensors since the last [`reset_peak_memory`].
    pub peak_allocated: u64,
    /// Taken from the device, for tensors of now or later.
    pub reserved: u64,
    /// Most that was taken since then.
    pub peak_reserved: u64,
    /// How often the allocator had to give back memory before the device had some left: each stalls the device.
    pub num_retries: u64,
    /// How often it was out of memory.
    pub num_failures: u64,
}

/// `None` for a CPU, whose memory libtorch does not count.
///
/// # Errors
/// The device is not there, or nothing has used it yet.
pub fn device_memory(device: Device) -> Result<Option<DeviceMemory>> {
    let Some(device) = gpu(device)? else {
        return Ok(None);
    };
    let mut raw = ffi::RhMemory::default();
    // SAFETY: valid for a write.
    check(unsafe { ffi::rh_device_memory(device, &raw mut raw) })?;
    let number = |value: i64| u64::try_from(value).unwrap_or(0);
    Ok(Some(DeviceMemory {
        allocated: number(raw.allocated),
        peak_allocated: number(raw.peak_allocated),
        reserved: number(raw.reserved),
        peak_reserved: number(raw.peak_reserved),
        num_retries: number(raw.retries),
        num_failures: number(raw.failures),
    }))
}

/// Begins the peaks of [`device_memory`] anew.
///
/// # Errors
/// As [`device_memory`].
pub fn reset_peak_memory(device: Device) -> Result<()> {
    match gpu(device)? {
        // SAFETY: takes a number.
        Some(device) => check(unsafe { ffi::rh_reset_peak_memory(device) }),
        None => Ok(()),
    }
}

fn gpu(device: Device) -> Result<Option<c_int>> {
    match device {
        Device::Cuda(index) => c_int::try_from(index)
            .map(Some)
            .map_err(|_| Error::refused(format!("GPU {index}"))),
        _ => Ok(None),
    }
}

/// NCCL's version in the form of `NCCL_VERSION_CODE`, 22809 for 2.28.9.
#[cfg(feature = "nccl")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NcclVersions {
    /// Of the library that is loaded.
    pub loaded: u32,
    /// Of the headers that this program was compiled with. They must be equal: the options of a group contain a
    /// struct of NCCL's.
    pub compiled: u32,
}

/// Asks NCCL.
///
/// # Errors
/// The library does not answer.
#[cfg(feature = "nccl")]
pub fn nccl_versions() -> Result<NcclVersions> {
    let (mut loaded, mut compiled) = (0, 0);
    // SAFETY: valid for a write.
    check(unsafe { ffi::rh_nccl_versions(&raw mut loaded, &raw mut compiled) })?;
    let number = |value: c_int| u32::try_from(value).unwrap_or(0);
    Ok(NcclVersions {
        loaded: number(loaded),
        compiled: number(compiled),
    })
}

/// A recording of all operations of this thread and of its backward passes, by Kineto. One at a time in a process;
/// what is dropped before [`Self::stop`] is discarded.
#[derive(Debug)]
#[must_use = "it ends when it is dropped"]
pub struct Trace {
    is_running: bool,
    of_thread: PhantomData<*const ()>,
}

impl Trace {
    /// Begins to record, for a GPU with its kernels.
    ///
    /// # Errors
    /// Another trace is being recorded.
    pub fn start(device: Device) -> Result<Self> {
        // SAFETY: takes a flag.
        check(unsafe { ffi::rh_trace_start(device.is_cuda()) })?;
        Ok(Self {
            is_running: true,
            of_thread: PhantomData,
        })
    }

    /// Ends the recording and writes it in Chrome's trace format, which Perfetto opens.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn stop(mut self, path: &Path) -> Result<()> {
        let path = path
            .to_str()
            .ok_or_else(|| Error::refused(format!("{} is not UTF-8", path.display())))?;
        let text = c_string(path)?;
        self.is_running = false;
        // SAFETY: the path is NUL-terminated. Of the same thread, for the trace is not `Send`.
        check(unsafe { ffi::rh_trace_stop(text.as_ptr()) })?;
        // Kineto only logs that it could not write.
        if std::fs::metadata(path).is_ok_and(|file| file.len() > 0) {
            Ok(())
        } else {
            Err(Error::refused(format!("no trace was written to {path}")))
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if self.is_running {
            // SAFETY: null discards the trace. Of the same thread, for the trace is not `Send`.
            let _ = unsafe { ffi::rh_trace_stop(std::ptr::null()) };
        }
    }
}

#[cfg(test)]
mod tests;
