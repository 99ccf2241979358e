//! Prints a generated page of the documentation as Markdown: `docgen failures`,
//! `docgen exit-codes`, `docgen trainingjob` or `docgen plugin PROGRAM`. `make generate` writes
//! them to docs/.

use std::io;
use std::process::ExitCode;

mod exit_codes;
mod failures;
mod meanings;
mod plugin;
mod table;
mod trainingjob;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let page = match arguments.as_slice() {
        ["failures"] => Ok(failures::page()),
        ["exit-codes"] => Ok(exit_codes::page()),
        ["trainingjob"] => trainingjob::page().map_err(io::Error::from),
        ["plugin", program] => plugin::page(program),
        _ => Err(io::Error::other(
            "usage: docgen failures | exit-codes | trainingjob | plugin PROGRAM",
        )),
    };
    match page {
        Ok(text) => {
            println!("{}", text.trim_end());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("docgen: {error}");
            ExitCode::FAILURE
        }
    }
}
