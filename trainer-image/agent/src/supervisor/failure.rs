//! Failures of the agent itself.

use std::net::SocketAddr;

use roundhouse_contract::{ExitCode, ports};

mod exec;

pub(crate) use exec::is_text_without_interpreter;

/// A failure that keeps the agent from continuing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("cannot use the run directory {path}: {source}")]
    RunDir {
        path: String,
        source: std::io::Error,
    },
    #[error("{}", exec::words(program, source))]
    Spawn {
        program: String,
        source: std::io::Error,
    },
    #[error("cannot listen on {address}: {source}{}", what_to_do(*address, source))]
    Listen {
        address: SocketAddr,
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
    /// Returns the exit code of the worker. A script's command comes from the user
    /// and will stay wrong.
    pub(crate) fn exit_code(&self, runs_script: bool) -> ExitCode {
        match self {
            Self::Spawn { source, .. } if runs_script && exec::is_permanent(source) => {
                ExitCode::ConfigInvalid
            }
            _ => ExitCode::Internal,
        }
    }
}

/// Advice for a port that is in use. In a pod the address is fixed, because the probe, the Service
/// and the NetworkPolicy name the port.
fn what_to_do(address: SocketAddr, error: &std::io::Error) -> String {
    if error.kind() != std::io::ErrorKind::AddrInUse {
        return String::new();
    }
    if address.port() != ports::AGENT_HTTP {
        return "; give another --http-address".to_owned();
    }
    format!(
        ": another container of the pod listens on port {}, which Roundhouse needs in every worker; give that container \
         another port (the exporter of OpenTelemetry for Prometheus uses this one unless \
         OTEL_EXPORTER_PROMETHEUS_PORT is set)",
        ports::AGENT_HTTP
    )
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::*;

    #[test]
    fn used_port_is_named_with_advice() {
        let words = |address: &str| {
            let failure = Failure::Listen {
                address: address.parse().unwrap(),
                source: Error::from(ErrorKind::AddrInUse),
            };
            failure.to_string()
        };
        assert!(words("[::]:9464").contains("give that container another port"));
        assert!(words("127.0.0.1:80").contains("--http-address"));
    }
}
