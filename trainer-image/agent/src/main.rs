//! `roundhouse-agent`: see the library's documentation.

use std::process::ExitCode;

use clap::Parser;
use roundhouse_agent::options::{Cli, Task};
use roundhouse_agent::{install, supervisor};

fn main() -> ExitCode {
    let Cli { task, options } = Cli::parse();
    let code = match task {
        None => supervisor::run(&options),
        Some(Task::Install { directory }) => match install::install(&directory) {
            Ok(()) => 0,
            Err(error) => {
                eprintln!("cannot install into {}: {error}", directory.display());
                1
            }
        },
    };
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}
