//! `roundhouse-operator`: see the library's documentation.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use roundhouse_operator::settings::Settings;
use roundhouse_operator::{check, run};

/// Runs TrainingJobs: creates their pods, tells them their places, and reports how it goes.
///
/// It finds the cluster as kubectl does (KUBECONFIG, ~/.kube/config) or, in a pod, by the service
/// account.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(flatten)]
    settings: Settings,
    #[command(subcommand)]
    command: Option<Command>,
}

/// What it does instead of running TrainingJobs.
#[derive(Debug, Subcommand)]
enum Command {
    /// Follow a TrainingJob to its end, or read a policy. Exit code: 0 succeeded, 1 failed or not in time.
    Check(check::Arguments),
}

#[tokio::main]
async fn main() -> ExitCode {
    let Arguments { settings, command } = Arguments::parse();
    match command {
        Some(Command::Check(arguments)) => check(&arguments).await,
        None => operate(settings).await,
    }
}

async fn operate(settings: Settings) -> ExitCode {
    run::init_logging(settings.log_format, settings.log_level);
    match run::run(settings).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the operator cannot run");
            ExitCode::FAILURE
        }
    }
}

async fn check(arguments: &check::Arguments) -> ExitCode {
    match check::run(arguments).await {
        Ok(words) => {
            println!("{words}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
