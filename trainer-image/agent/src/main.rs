//! `roundhouse-agent`: see the library's documentation.

use std::process::ExitCode;

use clap::Parser;
use roundhouse_agent::options::Cli;
use roundhouse_agent::program;

fn main() -> ExitCode {
    let code = program::run(Cli::parse());
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}
