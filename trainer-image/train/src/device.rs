//! Where this process computes: its GPU if there is one and this build can use it, else the CPU.

use roundhouse_c10d::Backend;
use tch::Device;

/// The device of the process with this local rank.
#[must_use]
pub fn own(local_rank: u32) -> Device {
    let num_gpus = if cfg!(feature = "nccl") {
        tch::Cuda::device_count()
    } else {
        0
    };
    let index = usize::try_from(local_rank).unwrap_or(usize::MAX);
    if i64::try_from(index).is_ok_and(|index| index < num_gpus) {
        Device::Cuda(index)
    } else {
        Device::Cpu
    }
}

/// The library that connects processes on such devices.
#[must_use]
pub fn backend(device: Device) -> Backend {
    match device {
        #[cfg(feature = "nccl")]
        Device::Cuda(index) => Backend::Nccl {
            device: u16::try_from(index).unwrap_or(u16::MAX),
        },
        #[cfg(feature = "faults")]
        Device::Cpu if roundhouse_member::faults::stands_in_for_nccl() => Backend::FakeNccl,
        _ => Backend::Gloo,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_gpu_processes_compute_on_the_cpu_and_meet_over_gloo() {
        if tch::Cuda::device_count() == 0 {
            assert_eq!(own(0), Device::Cpu);
        }
        assert!(matches!(backend(Device::Cpu), Backend::Gloo));
    }
}
