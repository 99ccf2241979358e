//! The agent, under a name that this package's tests can ask Cargo for.

use clap::Parser;
use roundhouse_agent::options::Cli;
use roundhouse_agent::program;

fn main() {
    std::process::exit(program::run(Cli::parse()));
}
