//! What can keep the agent itself from going on.

/// Why the agent itself cannot go on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("cannot use the run directory {path}: {source}")]
    RunDir {
        path: String,
        source: std::io::Error,
    },
    #[error("cannot start {program}: {source}; check the command after `--`")]
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
