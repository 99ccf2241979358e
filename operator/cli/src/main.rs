//! `kubectl roundhouse`: run and follow TrainingJobs from a terminal.

mod cluster;
mod local;
mod metrics;
mod render;
mod screen;
mod watch;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

/// Run TrainingJobs on this machine, and follow those of a cluster.
///
/// Put it on the PATH and call it as `kubectl roundhouse`. It uses kubectl's configuration.
#[derive(Debug, Parser)]
#[command(name = "kubectl-roundhouse", bin_name = "kubectl roundhouse", version)]
struct Arguments {
    #[command(flatten)]
    place: cluster::Place,
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
    /// Run a job's workers as processes of this machine, without a cluster: the same plans, the same
    /// trainer, elastic as on pods. Ctrl-C ends it and all its processes. Exit codes as of `watch`; 130
    /// after Ctrl-C.
    Run(local::Options),
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
    let Arguments { place, command } = Arguments::parse();
    let connect = || cluster::Cluster::connect(&place);
    let result = async {
        match command {
            Command::Run(options) => local::run(&options).await,
            Command::Watch { name, timeout } => {
                let cluster = connect().await?;
                Box::pin(watch::watch(&cluster, &name, Duration::from_secs(timeout))).await
            }
            Command::Metrics { name, filter } => {
                metrics::print(&connect().await?, &name, &filter).await
            }
        }
    };
    match Box::pin(result).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
