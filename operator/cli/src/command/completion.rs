//! `completion`: prints completion scripts for shells and for kubectl.

use std::process::ExitCode;

use clap::{Command, ValueEnum};
use clap_complete::Shell;

use super::{Outcome, complete};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The shell, or `kubectl` for `kubectl roundhouse`.
    #[arg(value_enum)]
    shell: For,
    /// The name under which the program is called.
    #[arg(long, value_name = "NAME", default_value = "kubectl-roundhouse")]
    name: String,
}

/// The shell or program that uses the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum For {
    Bash,
    Elvish,
    Fish,
    /// The program `kubectl_complete-roundhouse`, for kubectl.
    Kubectl,
    #[value(name = "powershell")]
    PowerShell,
    Zsh,
}

pub(crate) fn run(mut command: Command, options: &Options) -> Outcome {
    let Options { shell, name } = options;
    let shell = match shell {
        For::Bash => Shell::Bash,
        For::Elvish => Shell::Elvish,
        For::Fish => Shell::Fish,
        For::PowerShell => Shell::PowerShell,
        For::Zsh => Shell::Zsh,
        For::Kubectl => {
            crate::out::write(&complete::script(name))?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    crate::out::write(&String::from_utf8(script)?)?;
    Ok(ExitCode::SUCCESS)
}
