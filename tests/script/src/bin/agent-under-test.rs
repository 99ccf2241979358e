//! The agent, under a name that this package's tests can ask Cargo for.

use clap::Parser;
use roundhouse_agent::options::Cli;

fn main() {
    std::process::exit(roundhouse_agent::supervisor::run(&Cli::parse().options));
}
