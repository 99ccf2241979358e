//! `roundhouse-agent`: see the library's documentation.

use std::process::ExitCode;

use clap::Parser;
use roundhouse_agent::options::{Cli, Task};
use roundhouse_agent::{bound, install, supervisor};
use roundhouse_contract::environment::DEFAULT_CONNECT_TIMEOUT_SECONDS;

fn main() -> ExitCode {
    let Cli { task, options } = Cli::parse();
    let code = match task {
        None => supervisor::run(&options),
        Some(Task::Environment) => {
            for (name, value) in supervisor::device_settings(DEFAULT_CONNECT_TIMEOUT_SECONDS) {
                println!("{name}={value}");
            }
            0
        }
        Some(Task::Bound { command }) => bound::run(&command),
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
