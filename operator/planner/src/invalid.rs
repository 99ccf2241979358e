//! The error of a spec that cannot run.

/// A spec that cannot run, with one sentence that says what to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct InvalidSpec {
    /// Path of the field, such as `spec.workers.replicas`.
    pub field: String,
    pub message: String,
    /// Whether the cause is a GPU resource that the operator's setting does not list.
    pub is_unlisted_gpu: bool,
}

impl InvalidSpec {
    pub(crate) fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            message: message.into(),
            is_unlisted_gpu: false,
        }
    }
}

pub(crate) fn invalid<T>(
    field: impl Into<String>,
    message: impl Into<String>,
) -> Result<T, InvalidSpec> {
    Err(InvalidSpec::new(field, message))
}
