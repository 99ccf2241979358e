//! What is wrong with a spec.

/// A spec that cannot be run: one sentence that says what to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct InvalidSpec {
    /// Path of the field, such as `spec.workers.replicas`.
    pub field: String,
    /// What to change.
    pub message: String,
}

pub(crate) fn invalid<T>(
    field: impl Into<String>,
    message: impl Into<String>,
) -> Result<T, InvalidSpec> {
    Err(InvalidSpec {
        field: field.into(),
        message: message.into(),
    })
}
