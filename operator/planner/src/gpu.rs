//! Names of extended resources that are GPUs.

/// Whole GPUs.
pub const RESOURCES: [&str; 2] = ["nvidia.com/gpu", "amd.com/gpu"];

/// Whether a resource is slices of a GPU (MIG). A process can use one of them, however many the pod has.
#[must_use]
pub fn is_slice(resource: &str) -> bool {
    resource.starts_with("nvidia.com/mig-")
}
