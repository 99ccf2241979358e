//! `kubectl roundhouse`: follow TrainingJobs from a terminal.

mod cluster;
mod metrics;
mod render;
mod watch;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

/// Follow TrainingJobs from a terminal.
///
/// Put it on the PATH and call it as `kubectl roundhouse`. It uses kubectl's configuration.
#[derive(Debug, Parser)]
#[command(name = "kubectl-roundhouse", bin_name = "kubectl roundhouse", version)]
struct Arguments {
    /// Namespace of the job. Default: that of the current context.
    #[arg(short, long, global = true)]
    namespace: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show a job live until it ends. Exit code: 0 succeeded, 1 failed, 2 not in time, 3 deleted.
    Watch {
        /// Name of the job.
        name: String,
        /// Give up after so many seconds.
        #[arg(long, default_value_t = 3600)]
        timeout: u64,
    },
    /// Print a worker's metrics while it runs.
    Metrics {
        /// Name of the job.
        name: String,
        /// Only lines that contain this.
        #[arg(long, default_value = "")]
        filter: String,
    },
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Arguments { namespace, command } = Arguments::parse();
    let result = async {
        let cluster = cluster::Cluster::connect(namespace).await?;
        match command {
            Command::Watch { name, timeout } => {
                watch::watch(&cluster, &name, Duration::from_secs(timeout)).await
            }
            Command::Metrics { name, filter } => metrics::print(&cluster, &name, &filter).await,
        }
    };
    match result.await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
