//! `roundhouse-operator`: see the library's documentation.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{self, ExitCode};

use clap::{Parser, Subcommand};
use roundhouse_operator::controller::tenancy;
use roundhouse_operator::run::RunError;
use roundhouse_operator::settings::{POLICY_AS_READ, Settings};
use roundhouse_operator::{check, run};

/// Runs TrainingJobs: creates their pods, gives each worker its rank, and reports progress.
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

/// Commands beside the operator itself.
#[derive(Debug, Subcommand)]
enum Command {
    /// Follow a TrainingJob to its end, or read a policy. Exit code: 0 succeeded, 1 failed or not
    /// in time.
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

async fn operate(mut settings: Settings) -> ExitCode {
    run::init_logging(settings.log_format, settings.log_level);
    if let Some(path) = &settings.policy_file
        && settings.policy_as_read.is_none()
    {
        // If the file cannot be read, `run` reads it again and returns the error.
        settings.policy_as_read = tenancy::text(path).ok();
    }
    let policy = settings.policy_as_read.clone();
    match run::run(settings).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error @ RunError::LeaseLost(_)) => {
            tracing::warn!(%error);
            let error = restart(policy);
            tracing::error!(%error, "the operator cannot restart itself");
            ExitCode::FAILURE
        }
        Err(error) => {
            tracing::error!(%error, "the operator cannot run");
            ExitCode::FAILURE
        }
    }
}

/// Replaces this process by a new one of the same program. The container keeps running, so
/// Kubernetes does not count a crash and does not delay the restart by its back-off. The new
/// process keeps the policy that this one has read: if the file has a mistake by now, it would end
/// the only operator. Returns only if the program cannot be started.
fn restart(policy: Option<String>) -> io::Error {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return error,
    };
    let mut command = process::Command::new(program);
    command
        .args(std::env::args_os().skip(1))
        .envs(policy.map(|policy| (POLICY_AS_READ, policy)))
        .exec()
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
