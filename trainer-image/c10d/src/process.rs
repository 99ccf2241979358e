//! Settings of the process: file descriptors and devices.

use std::ffi::c_int;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tch::Device;

use crate::error::{Error, Result, check};
use crate::ffi;

/// Raises this process's limit of open files to the hard limit and returns it (`u64::MAX`: no
/// limit). A group over Gloo opens two descriptors per peer, so the usual soft limit of 1,024
/// allows about 500 ranks.
///
/// # Errors
/// The system refuses the new limit.
pub fn raise_descriptor_limit() -> Result<u64> {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = Rlimit {
        current: maximum,
        maximum,
    };
    setrlimit(Resource::Nofile, limit)
        .map_err(|error| Error::refused(format!("raising the limit of open files: {error}")))?;
    Ok(maximum.unwrap_or(u64::MAX))
}

/// Number of GPUs that this process can use, at least 1.
///
/// # Errors
/// There is no usable GPU. The message is that of CUDA or its driver, such as that the driver is
/// too old.
#[cfg(feature = "nccl")]
pub fn num_gpus() -> Result<u32> {
    let mut number = 0;
    // SAFETY: valid for a write.
    check(unsafe { ffi::rh_num_gpus(&raw mut number) })?;
    Ok(u32::try_from(number).unwrap_or_default())
}

/// Makes a GPU the current device of the calling thread, for streams, pinned memory and tensors
/// without an explicit device. Each thread starts with device 0.
///
/// # Errors
/// There is no such GPU, it has failed, or this libtorch has no CUDA.
pub fn set_device(device: u16) -> Result<()> {
    // SAFETY: takes a number.
    check(unsafe { ffi::rh_set_device(c_int::from(device)) })
}

/// Releases libtorch's cached memory to the device, for libraries with their own allocations, such
/// as NCCL. The host waits for the device. It has no effect for a CPU.
///
/// # Errors
/// The device reports a failure.
pub fn empty_cache(device: Device) -> Result<()> {
    match device {
        // SAFETY: takes nothing.
        Device::Cuda(_) => check(unsafe { ffi::rh_empty_cache() }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_cache_ignores_cpus_and_refuses_missing_gpus() {
        empty_cache(Device::Cpu).unwrap();
        if !tch::Cuda::is_available() {
            assert!(empty_cache(Device::Cuda(0)).is_err());
        }
    }

    #[test]
    fn soft_limit_of_open_files_becomes_the_hard_limit() {
        let before = getrlimit(Resource::Nofile);
        assert!(raise_descriptor_limit().unwrap() >= before.current.unwrap());
        let after = getrlimit(Resource::Nofile);
        assert_eq!(after.current, before.maximum);
        assert_eq!(after.maximum, before.maximum);
    }
}
