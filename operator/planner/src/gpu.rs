//! Names of extended resources that are GPUs.

use std::convert::Infallible;
use std::str::FromStr;

/// Whole GPUs, unless the administrator lists others.
pub const RESOURCES: [&str; 2] = ["nvidia.com/gpu", "amd.com/gpu"];

/// The same as a setting gives them.
pub const USUAL: &str = "nvidia.com/gpu,amd.com/gpu";

/// The resources that are whole GPUs, by their names in this cluster: a worker has one process for each GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed(Vec<String>);

impl Default for Listed {
    fn default() -> Self {
        Self(RESOURCES.map(str::to_owned).to_vec())
    }
}

/// Names with commas between them.
impl FromStr for Listed {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let names = text.split(',').map(str::trim);
        let names = names.filter(|name| !name.is_empty());
        Ok(Self(names.map(str::to_owned).collect()))
    }
}

impl Listed {
    /// The names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Whether a resource is one of them.
    #[must_use]
    pub fn has(&self, resource: &str) -> bool {
        self.names().any(|name| name == resource)
    }
}

/// Beginnings of other names of GPUs and of their shares. They tell neither how many processes a worker has nor what these
/// compute on; their number says how many devices a job holds.
const OTHERS: [&str; 3] = ["nvidia.com/gpu.", "gpu.intel.com/", "habana.ai/"];

/// Whether a resource is GPUs, or parts of them, as far as their names are known.
#[must_use]
pub fn is_gpu(resource: &str) -> bool {
    let mut others = OTHERS.iter();
    RESOURCES.contains(&resource)
        || is_slice(resource)
        || others.any(|beginning| resource.starts_with(beginning))
}

/// Beginnings of names of devices that libtorch of the built-in trainer has no backend for.
const WITHOUT_BACKEND: [&str; 2] = ["gpu.intel.com/", "habana.ai/"];

/// Whether the built-in trainer would train on the CPU beside such a device.
#[must_use]
pub fn is_unusable(resource: &str) -> bool {
    let mut beginnings = WITHOUT_BACKEND.iter();
    beginnings.any(|beginning| resource.starts_with(beginning))
}

/// Whether the number of these devices does not say how many processes a worker has.
#[must_use]
pub fn has_unknown_processes(resource: &str) -> bool {
    let mut others = OTHERS.iter();
    others.any(|beginning| resource.starts_with(beginning))
}

/// Whether a resource is devices of any kind: those of Kubernetes itself have no domain, or its own.
#[must_use]
pub fn is_extended(resource: &str) -> bool {
    resource
        .split_once('/')
        .is_some_and(|(domain, _)| domain != "kubernetes.io" && !domain.ends_with(".kubernetes.io"))
}

/// Whether a resource is slices of a GPU (MIG). A process can use one of them, however many the pod has.
#[must_use]
pub fn is_slice(resource: &str) -> bool {
    resource.starts_with("nvidia.com/mig-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_names_are_those_of_the_default_setting() {
        assert_eq!(USUAL.parse(), Ok(Listed::default()));
    }
}
