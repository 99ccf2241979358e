//! `convert`: converts jobs of other operators to TrainingJobs.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;

use super::{Outcome, submit};
use crate::{convert, out};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The file with PyTorchJobs, TrainJobs or RayJobs; `-` reads standard input.
    #[arg(short, long = "filename", value_name = "FILE")]
    file: PathBuf,
}

pub(crate) fn run(options: &Options) -> Outcome {
    let text = submit::read(&options.file)?;
    let converted = convert::convert(&text);
    let converted = converted.with_context(|| format!("in {}", options.file.display()))?;
    out::write(&converted)?;
    Ok(ExitCode::SUCCESS)
}
