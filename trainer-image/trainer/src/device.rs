//! The device of this process: its GPU if there is one and this build supports it, else the CPU.

use roundhouse_c10d::{Backend, device_memory};
use roundhouse_contract::environment::ExpectedDevice;
use roundhouse_member::faults;
use roundhouse_report::{DeviceMemory, MemoryProbe};
use tch::Device;

use crate::failure::Failure;
use crate::sync::Commit;

#[cfg(any(feature = "nccl", test))]
mod nccl;

/// The device of the process with this local rank. If the pod requests a GPU that cannot be used,
/// this is an error: training on the CPU instead would be a hundred times slower without a message.
///
/// # Errors
/// [`Failure::Device`] if fewer GPUs can be used than the pod requests.
pub fn own(local_rank: u32, expected: Option<ExpectedDevice>) -> Result<Device, Failure> {
    choose(local_rank, &Gpus::look(), expected).map_err(Failure::Device)
}

/// The GPUs of this machine, as CUDA reports them.
#[derive(Debug, Default)]
struct Gpus {
    /// Number of GPUs that can be used.
    number: u32,
    /// The error of CUDA or its driver if no GPU can be used.
    trouble: Option<String>,
}

impl Gpus {
    #[cfg(feature = "nccl")]
    fn look() -> Self {
        match roundhouse_c10d::num_gpus() {
            Ok(number) => Self {
                number,
                trouble: None,
            },
            Err(error) => Self {
                number: 0,
                trouble: Some(error.message),
            },
        }
    }

    /// A build without CUDA finds no GPU.
    #[cfg(not(feature = "nccl"))]
    fn look() -> Self {
        Self::default()
    }
}

/// Makes a GPU the current device of this thread. Operations without a tensor, such as allocating
/// pinned memory or streams, use the current device.
///
/// # Errors
/// The GPU cannot be used, or the loaded NCCL has another version than the one that this program
/// was compiled for.
pub fn enter(device: Device) -> Result<(), Failure> {
    if let Device::Cuda(index) = device {
        roundhouse_c10d::set_device(u16::try_from(index).unwrap_or(u16::MAX))?;
        #[cfg(feature = "nccl")]
        {
            let versions = roundhouse_c10d::nccl_versions()?;
            nccl::check(versions.loaded, versions.compiled)?;
        }
    }
    Ok(())
}

/// Chooses the device of a process among the GPUs that can be used.
fn choose(
    local_rank: u32,
    gpus: &Gpus,
    expected: Option<ExpectedDevice>,
) -> Result<Device, String> {
    let gpu = usize::try_from(local_rank).map_or(Device::Cpu, Device::Cuda);
    match expected {
        Some(ExpectedDevice::Cuda(wanted)) if gpus.number < wanted.get() => {
            Err(too_few(gpus, wanted.get(), cfg!(feature = "nccl")))
        }
        Some(ExpectedDevice::Cuda(wanted)) if local_rank >= wanted.get() => Err(format!(
            "process {local_rank} of this worker has no GPU of its own: the pod asks for {wanted}; set workers.procsPerWorker to {wanted} or less"
        )),
        Some(ExpectedDevice::Cuda(_)) => Ok(gpu),
        None if local_rank < gpus.number => Ok(gpu),
        None | Some(ExpectedDevice::Cpu) => Ok(Device::Cpu),
    }
}

/// The message for a pod that requests more GPUs than can be used.
fn too_few(gpus: &Gpus, wanted: u32, has_cuda: bool) -> String {
    let Gpus { number, trouble } = gpus;
    let advice = if has_cuda {
        "look at the node's driver with nvidia-smi: CUDA 13.0 needs version 580 or newer"
    } else {
        "this image has no CUDA: use the trainer's image for GPUs (trainer.image)"
    };
    let trouble = trouble.as_deref().unwrap_or_default();
    let trouble = trouble.trim().trim_end_matches('.');
    let colon = if trouble.is_empty() { "" } else { ": " };
    format!("the pod asks for {wanted} GPUs, and {number} can be used{colon}{trouble}; {advice}")
}

/// Whether the host or the device commits steps. Reading results of a GPU on the host makes the GPU
/// idle, so the GPU decides. On a CPU the results are available at once, and the votes of the ranks
/// travel with the gradients.
#[must_use]
pub fn commit(device: Device) -> Commit {
    if device.is_cuda() || faults::commits_on_device() {
        Commit::Device
    } else {
        Commit::Host
    }
}

/// Reads the memory use of a device for the metrics.
#[derive(Clone, Copy, Debug)]
pub struct Memory(pub Device);

impl MemoryProbe for Memory {
    fn device_memory(&self) -> Option<DeviceMemory> {
        // If the device does not answer, the next step fails with its own error.
        let memory = device_memory(self.0).ok()??;
        Some(DeviceMemory {
            allocated: memory.allocated,
            peak_allocated: memory.peak_allocated,
            reserved: memory.reserved,
            peak_reserved: memory.peak_reserved,
            num_retries: memory.num_retries,
        })
    }
}

/// The communication library for processes on such devices.
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
    use roundhouse_contract::ExitCode;

    use super::*;

    fn gpus(number: u32, trouble: Option<&str>) -> Gpus {
        Gpus {
            number,
            trouble: trouble.map(str::to_owned),
        }
    }

    #[test]
    fn requested_gpu_is_used_or_an_error() {
        let cuda = |num_gpus| Some(ExpectedDevice::of_gpus(num_gpus));
        for (what, local_rank, num_gpus, expected, found) in [
            ("nothing is expected, no GPU", 0, 0, None, Some(Device::Cpu)),
            (
                "nothing is expected, a GPU",
                1,
                2,
                None,
                Some(Device::Cuda(1)),
            ),
            (
                "the CPU is expected, a GPU is seen",
                0,
                2,
                cuda(0),
                Some(Device::Cpu),
            ),
            ("all GPUs can be used", 1, 2, cuda(2), Some(Device::Cuda(1))),
            ("the driver is too old", 0, 0, cuda(2), None),
            ("one of two GPUs is broken", 0, 1, cuda(2), None),
            ("more processes than GPUs", 2, 2, cuda(2), None),
        ] {
            let chosen = choose(local_rank, &gpus(num_gpus, None), expected);
            assert_eq!(chosen.clone().ok(), found, "{what}: {chosen:?}");
        }
    }

    #[test]
    fn error_contains_the_drivers_message() {
        let old = "The NVIDIA driver on your system is too old (found version 12020).";
        for (gpus, has_cuda, said) in [
            (
                gpus(0, Some(old)),
                true,
                "the pod asks for 2 GPUs, and 0 can be used: The NVIDIA driver on your system is too old (found version 12020); look at the node's driver",
            ),
            (
                gpus(0, Some("No CUDA GPUs are available\n")),
                true,
                "0 can be used: No CUDA GPUs are available; look at the node's driver",
            ),
            (
                gpus(1, None),
                true,
                "1 can be used; look at the node's driver",
            ),
            (
                gpus(0, None),
                false,
                "0 can be used; this image has no CUDA",
            ),
        ] {
            let text = too_few(&gpus, 2, has_cuda);
            assert!(text.contains(said), "{text}");
        }
        let failure = Failure::Device(too_few(&gpus(0, Some(old)), 2, true));
        assert_eq!(failure.exit_code(), ExitCode::HardwareFault);
    }

    #[test]
    fn cpu_processes_use_gloo() {
        assert!(matches!(backend(Device::Cpu), Backend::Gloo));
    }
}
