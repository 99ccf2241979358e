//! Names of extended resources that are GPUs.

use std::convert::Infallible;
use std::str::FromStr;

/// Resources that are whole GPUs by default.
pub const RESOURCES: [&str; 2] = ["nvidia.com/gpu", "amd.com/gpu"];

/// The same list in the format of the operator's setting.
pub const USUAL: &str = "nvidia.com/gpu,amd.com/gpu";

/// The resources that are whole GPUs in this cluster: a worker has one process for each GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed(Vec<String>);

impl Default for Listed {
    fn default() -> Self {
        Self(RESOURCES.map(str::to_owned).to_vec())
    }
}

/// Parses names that are separated by commas.
impl FromStr for Listed {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let names = text.split(',').map(str::trim);
        let names = names.filter(|name| !name.is_empty());
        Ok(Self(names.map(str::to_owned).collect()))
    }
}

impl Listed {
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Whether a resource is one of them.
    #[must_use]
    pub fn has(&self, resource: &str) -> bool {
        self.names().any(|name| name == resource)
    }
}

/// Prefixes of other names of GPUs and of their shares. They do not determine the number of
/// processes of a worker or their device; their quantity is the number of devices that a job holds.
const OTHERS: [&str; 3] = ["nvidia.com/gpu.", "gpu.intel.com/", "habana.ai/"];

/// Whether a resource is a known name of GPUs or of parts of them.
#[must_use]
pub fn is_gpu(resource: &str) -> bool {
    let mut others = OTHERS.iter();
    RESOURCES.contains(&resource)
        || is_slice(resource)
        || others.any(|beginning| resource.starts_with(beginning))
}

/// Prefixes of devices for which libtorch of the built-in trainer has no backend.
const WITHOUT_BACKEND: [&str; 2] = ["gpu.intel.com/", "habana.ai/"];

/// Whether the built-in trainer would train on the CPU beside such a device.
#[must_use]
pub fn is_unusable(resource: &str) -> bool {
    let mut beginnings = WITHOUT_BACKEND.iter();
    beginnings.any(|beginning| resource.starts_with(beginning))
}

/// Whether the quantity of this resource does not determine how many processes a worker has.
#[must_use]
pub fn has_unknown_processes(resource: &str) -> bool {
    let mut others = OTHERS.iter();
    others.any(|beginning| resource.starts_with(beginning))
}

/// Whether a resource is an extended resource (a device): resources of Kubernetes itself have no
/// domain or its domain.
#[must_use]
pub fn is_extended(resource: &str) -> bool {
    resource
        .split_once('/')
        .is_some_and(|(domain, _)| domain != "kubernetes.io" && !domain.ends_with(".kubernetes.io"))
}

/// Whether a resource is slices of a GPU (MIG). A process can use only one of them, however
/// many the pod has.
#[must_use]
pub fn is_slice(resource: &str) -> bool {
    resource.starts_with("nvidia.com/mig-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_setting_parses_to_default_names() {
        assert_eq!(USUAL.parse(), Ok(Listed::default()));
    }
}
