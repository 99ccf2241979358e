//! Memory use and versions, for metrics and checks.

use std::ffi::c_int;

use tch::Device;

use crate::error::{Error, Result, check};
use crate::ffi;

/// Memory of libtorch's allocator on one GPU, in bytes. It does not include the memory of NCCL,
/// cuDNN and the driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Memory that tensors currently use.
    pub allocated: u64,
    /// Largest use by tensors since the last [`reset_peak_memory`].
    pub peak_allocated: u64,
    /// Memory that the allocator has taken from the device, for current and later tensors.
    pub reserved: u64,
    /// Largest amount taken since the last [`reset_peak_memory`].
    pub peak_reserved: u64,
    /// Number of times that the allocator had to release cached memory to satisfy a request. Each
    /// time stalls the device.
    pub num_retries: u64,
    /// Number of requests that failed for lack of memory.
    pub num_failures: u64,
}

/// The memory of a device. `None` for a CPU, whose memory libtorch does not count.
///
/// # Errors
/// The device does not exist or was not used yet.
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

/// Resets the peaks of [`device_memory`] to the current values.
///
/// # Errors
/// The same as [`device_memory`].
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

/// Versions of NCCL in the form of `NCCL_VERSION_CODE`, such as 22809 for 2.28.9.
#[cfg(feature = "nccl")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NcclVersions {
    /// Version of the loaded library.
    pub loaded: u32,
    /// Version of the headers at compile time. Both versions must be equal, because the options of
    /// a group contain a struct of NCCL.
    pub compiled: u32,
}

/// Reads the versions from NCCL.
///
/// # Errors
/// The library returns no version.
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

#[cfg(test)]
mod tests;
