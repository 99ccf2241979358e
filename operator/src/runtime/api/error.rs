//! Errors of calls to the API server.

use std::time::Duration;

use kube::core::Status;

/// Whether the API server refuses the object and would again. Too slow (408) and too often (429)
/// are about the moment and not about the object. An admission webhook that does not answer counts
/// as a refusal: an administrator has to repair it.
pub(crate) fn is_refusal(status: &Status) -> bool {
    match status.code {
        408 | 429 => false,
        400..500 => true,
        500 => status.message.contains("failed calling webhook"),
        _ => false,
    }
}

/// A call to the API server that failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The API server did not answer in time.
    #[error("no answer within {} s", .0.as_secs())]
    Deadline(Duration),
    /// The API server has not answered yet, after this time. The call continues beside the
    /// reconciles.
    #[error("no answer yet after {} s", .0.as_secs())]
    Pending(Duration),
    /// The API server accepted the write and stored something else, which this text describes.
    #[error("{0}")]
    Undone(String),
    /// The API server refused, or could not be reached.
    #[error(transparent)]
    Kube(#[from] kube::Error),
}

impl CallError {
    /// HTTP status of the answer, if there was one.
    #[must_use]
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Kube(kube::Error::Api(status)) => Some(status.code),
            Self::Kube(_) | Self::Deadline(_) | Self::Pending(_) | Self::Undone(_) => None,
        }
    }

    /// The pause that the API server asked for, if it did.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        let Self::Kube(kube::Error::Api(status)) = self else {
            return None;
        };
        let seconds = status.details.as_ref()?.retry_after_seconds;
        (seconds > 0).then(|| Duration::from_secs(seconds.into()))
    }

    /// Whether the API server refused, and would again.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Kube(kube::Error::Api(status)) if is_refusal(status))
            && !self.is_conflict()
    }

    /// Conflict or `NotFound`: the caches were stale, so the job is reconciled again, and no error
    /// is counted. An admission webhook may refuse with any code; another reconcile changes nothing
    /// about that.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        match self {
            Self::Kube(kube::Error::Api(status)) => {
                matches!(status.code, 404 | 409)
                    && !status.message.starts_with("admission webhook ")
            }
            Self::Kube(_) | Self::Deadline(_) | Self::Pending(_) | Self::Undone(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn webhook_refusal_is_no_conflict_whatever_its_code() {
        let webhook = r#"admission webhook "a.b" denied the request: not on Fridays"#;
        for (code, words, expected) in [
            (404, "namespaces \"ml\" not found", true),
            (409, "pods \"digits-0\" already exists", true),
            (409, webhook, false),
            (404, webhook, false),
            (403, webhook, false),
        ] {
            let status = Status::failure(words, "Reason").with_code(code);
            let source = CallError::Kube(kube::Error::Api(status.boxed()));
            assert_eq!(source.is_conflict(), expected, "{code} {words}");
        }
    }
}
