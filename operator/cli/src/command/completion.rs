//! `completion`: scripts for shells.

use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;

use super::Outcome;

/// Which shell.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
    /// The name under which the program is called.
    #[arg(long, value_name = "NAME", default_value = "kubectl-roundhouse")]
    name: String,
}

pub(crate) fn run(mut command: Command, options: &Options) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut command, &options.name, &mut script);
    crate::out::write(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}
