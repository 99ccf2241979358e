//! What an operator wants to know: memory and versions.

use std::ffi::c_int;

use tch::Device;

use crate::error::{Error, Result, check};
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

#[cfg(test)]
mod tests;
