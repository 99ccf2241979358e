//! One request of a job that the policy does not allow.

/// Path of the pod's spec in the job.
pub(super) const POD: &str = "spec.workers.template.spec";

/// A field of a job with a value that the policy does not allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    /// Path of the field, from `spec.` on.
    pub(super) field: String,
    /// The value that the policy does not allow.
    pub(super) value: String,
    /// Key of the policy that would allow it.
    pub(super) key: &'static str,
}

impl Finding {
    pub(super) fn new(field: String, value: &(impl ToString + ?Sized), key: &'static str) -> Self {
        Self {
            field,
            value: value.to_string(),
            key,
        }
    }

    /// The message: the field, its value, and the chart value that would allow it.
    pub(super) fn words(&self) -> String {
        let Self { field, value, key } = self;
        format!("{field}: {value} is not allowed by policy.{key}")
    }
}

/// Path of a field of the pod.
pub(super) fn in_pod(field: &str) -> String {
    format!("{POD}.{field}")
}
