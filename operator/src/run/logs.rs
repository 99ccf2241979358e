//! Sets up the logs: their format, their level, and stderr as their target.

use std::io;

use tracing_subscriber::EnvFilter;

use crate::settings::{LogFormat, LogLevel};

/// Sets up logs; `RUST_LOG`, if set, overrides `level`.
pub fn init_logging(format: LogFormat, level: LogLevel) {
    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level.directive()));
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr);
    match format {
        LogFormat::Text => logs.init(),
        LogFormat::Json => logs.json().init(),
    }
}
