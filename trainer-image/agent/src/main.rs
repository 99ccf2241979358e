//! `roundhouse-agent`: see the library's documentation.

use std::process::ExitCode;

use clap::Parser;
use roundhouse_agent::options::Options;
use roundhouse_agent::supervisor;

fn main() -> ExitCode {
    let code = supervisor::run(&Options::parse());
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}
