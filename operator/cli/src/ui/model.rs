//! Arguments and errors of the page's queries, shared by the server, the cache and the data source.

use std::fmt;

use hyper::StatusCode;

/// Namespace and name of a job.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct JobName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// The log of one process of a job.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct LogRequest {
    pub(super) pod: String,
    /// Local rank of the process.
    pub(super) process: u32,
    /// Whether to read the log of the container before the last restart.
    pub(super) previous: bool,
}

/// Why a query has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum QueryError {
    /// A parameter is missing or malformed.
    Invalid(String),
    /// The job, the pod or the query does not exist.
    NotFound(String),
    /// The data source does not answer, or it refuses the request.
    Unreachable(String),
}

impl QueryError {
    pub(super) const fn status(&self) -> StatusCode {
        match self {
            Self::Invalid(_) => StatusCode::BAD_REQUEST,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::Unreachable(_) => StatusCode::BAD_GATEWAY,
        }
    }
}

impl fmt::Display for QueryError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Invalid(message) | Self::NotFound(message) | Self::Unreachable(message)) = self;
        out.write_str(message)
    }
}

impl From<anyhow::Error> for QueryError {
    fn from(error: anyhow::Error) -> Self {
        Self::Unreachable(format!("{error:#}"))
    }
}
