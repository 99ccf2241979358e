//! Names of extended resources that are GPUs.

/// Whole GPUs.
pub const RESOURCES: [&str; 2] = ["nvidia.com/gpu", "amd.com/gpu"];

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

/// Whether a resource is devices whose number does not tell how many processes a worker has.
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
