//! The device that the pod asked for, so that an unusable GPU is an error and training does not
//! silently use the CPU.

use std::num::NonZeroU32;

use super::{EXPECTED_DEVICE, EnvironmentInvalid, number};

const CPU: &str = "cpu";
const CUDA: &str = "cuda*";

/// The device of a worker's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedDevice {
    /// The CPU, even if GPUs are visible.
    Cpu,
    /// This number of NVIDIA GPUs. If fewer are usable, the node has a fault (exit code 77).
    Cuda(NonZeroU32),
}

impl ExpectedDevice {
    /// The device of a pod with this number of GPUs in its limits.
    #[must_use]
    pub fn of_gpus(num_gpus: u32) -> Self {
        NonZeroU32::new(num_gpus).map_or(Self::Cpu, Self::Cuda)
    }

    /// Reads the variable through `get` (`|name| std::env::var(name).ok()`). If it is not set or
    /// empty, no device is expected and the trainer uses what it finds.
    ///
    /// # Errors
    /// Fails if the variable is neither `cpu` nor `cuda*N` with N of at least 1.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, EnvironmentInvalid> {
        let text = get(EXPECTED_DEVICE).filter(|text| !text.is_empty());
        text.map(|text| number(EXPECTED_DEVICE, text)).transpose()
    }
}

impl std::fmt::Display for ExpectedDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cpu => f.write_str(CPU),
            Self::Cuda(num_gpus) => write!(f, "{CUDA}{num_gpus}"),
        }
    }
}

impl std::str::FromStr for ExpectedDevice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let num_gpus = text.strip_prefix(CUDA).and_then(|rest| rest.parse().ok());
        match (text, num_gpus) {
            (CPU, _) => Ok(Self::Cpu),
            (_, Some(num_gpus)) => Ok(Self::Cuda(num_gpus)),
            (_, None) => Err(format!("{text:?} is neither cpu nor cuda*N, as cuda*8")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expected_device_round_trips() {
        for (num_gpus, text) in [(0, "cpu"), (1, "cuda*1"), (8, "cuda*8")] {
            let device = ExpectedDevice::of_gpus(num_gpus);
            assert_eq!(device.to_string(), text);
            let read = ExpectedDevice::read(|_| Some(text.to_owned()));
            assert_eq!(read, Ok(Some(device)));
        }
    }

    #[test]
    fn unset_variable_expects_no_device() {
        assert_eq!(ExpectedDevice::read(|_| None), Ok(None));
        assert_eq!(ExpectedDevice::read(|_| Some(String::new())), Ok(None));
    }

    #[test]
    fn invalid_device_names_the_variable() {
        for text in ["cuda", "cuda*0", "cuda*-1", "cuda:0", "gpu", "CPU"] {
            let error = ExpectedDevice::read(|_| Some(text.to_owned())).unwrap_err();
            assert_eq!(error.variable, EXPECTED_DEVICE, "{text}");
        }
    }
}
