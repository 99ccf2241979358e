//! A trainer with a model and data of its own: a recurrent network that forecasts the water level
//! of a harbour.

mod harbour;
mod model;
mod options;
mod source;

use harbour::Harbour;
use model::Forecaster;
use options::Options;
use roundhouse_trainer::{Failure, Job, Setup, optimizers};
use source::Windows;

fn main() {
    roundhouse_trainer::main(build)
}

/// Builds the job. The library calls this once in each process, before the processes connect.
fn build(setup: &Setup<'_>) -> Result<Job, Failure> {
    let options: Options = setup.config.options()?;
    options.validate()?;
    let harbour = Harbour::read(&setup.data_root().join("constituents.txt"))?;
    let [train, test] = Windows::splits(&harbour, &options, setup.config.seed, setup.device)?;
    let optimizer = setup.config.optimizer.clone();
    Ok(Job {
        task: Box::new(Forecaster::new(&options, setup.config.seed)?),
        train: Box::new(train),
        test: Some(Box::new(test)),
        blocks: None,
        update: Box::new(move |parameters| optimizers::build(&optimizer, parameters)),
    })
}
