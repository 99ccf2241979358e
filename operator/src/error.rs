//! What can go wrong in one reconcile; the variant's name is the metric's label.

/// A step that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A write of an action.
    #[error("apply {action}: {source}")]
    Apply {
        /// What was written.
        action: &'static str,
        /// The API server's answer.
        source: CallError,
    },
    /// The write of the status.
    #[error("report: {0}")]
    Report(CallError),
    /// An object of ours cannot be written as JSON.
    #[error("build: {0}")]
    Build(#[from] serde_json::Error),
}

/// A call to the API server that failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// It did not answer in time.
    #[error("no answer within {} s", crate::calls::DEADLINE.as_secs())]
    Deadline,
    /// It refused, or could not be reached.
    #[error(transparent)]
    Kube(#[from] kube::Error),
}

impl CallError {
    /// HTTP status of the answer, if there was one.
    #[must_use]
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Kube(kube::Error::Api(status)) => Some(status.code),
            Self::Kube(_) | Self::Deadline => None,
        }
    }

    /// The world is not as it was observed: look again. Not a failure.
    #[must_use]
    pub fn is_look_again(&self) -> bool {
        matches!(self.code(), Some(404 | 409))
    }
}

impl Error {
    /// The API server's words, if it has refused an object of ours and would again.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        match self {
            Self::Apply {
                action: _,
                source: CallError::Kube(kube::Error::Api(status)),
            } if (400..500).contains(&status.code) => Some(status.message.clone()),
            Self::Apply { .. } | Self::Report(_) | Self::Build(_) => None,
        }
    }

    /// Label of the metric.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Apply { .. } => "Apply",
            Self::Report(_) => "Report",
            Self::Build(_) => "Build",
        }
    }
}
