//! The agent as a binary of this package, so that Cargo gives its tests the path.

use clap::Parser;
use roundhouse_agent::options::Cli;
use roundhouse_agent::program;

fn main() {
    std::process::exit(program::run(Cli::parse()));
}
