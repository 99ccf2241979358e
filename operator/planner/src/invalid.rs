//! What is wrong with a spec.

/// A spec that cannot be run: one sentence that says what to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct InvalidSpec {
    /// Path of the field, such as `spec.workers.replicas`.
    pub field: String,
    /// What to change.
    pub message: String,
    /// Whether it is that the administrator does not list the name of a resource as a GPU.
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
