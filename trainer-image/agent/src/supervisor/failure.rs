//! What can keep the agent itself from going on.

use roundhouse_contract::ExitCode;

/// Why the agent itself cannot continue.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("cannot use the run directory {path}: {source}")]
    RunDir {
        path: String,
        source: std::io::Error,
    },
    #[error("cannot start {program}: {source}; check the command")]
    Spawn {
        program: String,
        source: std::io::Error,
    },
    #[error("cannot listen on {address}: {source}; give another --http-address")]
    Listen {
        address: String,
        source: std::io::Error,
    },
    #[error("cannot wait for signals: {0}")]
    Signals(std::io::Error),
    #[error("cannot start the runtime: {0}")]
    Runtime(std::io::Error),
    #[error("cannot register metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

impl Failure {
    /// What the worker ends with. A script's command is the user's, and is wrong for ever.
    pub(crate) fn exit_code(&self, runs_script: bool) -> ExitCode {
        match self {
            Self::Spawn { source, .. } if runs_script && is_wrong(source) => {
                ExitCode::ConfigInvalid
            }
            _ => ExitCode::Internal,
        }
    }
}

fn is_wrong(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{NotFound, PermissionDenied};
    matches!(error.kind(), NotFound | PermissionDenied)
}
