//! The command line of `roundhouse-train`. In a worker it has no arguments: the agent tells
//! everything through the environment.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use roundhouse_contract::LaunchEnvironment;
use roundhouse_contract::environment::{
    COLLECTIVE_TIMEOUT_SECONDS, DEFAULT_COLLECTIVE_TIMEOUT_SECONDS, SAVE_WEIGHTS,
};

use crate::failure::Failure;
use crate::launch::Launch;

const EXAMPLE: &str = "\
Alone, on this machine:
  roundhouse-train --config trainer.json --data-dir examples/data/digits

where trainer.json is the `trainer` part of a TrainingJob as JSON:
  {
    \"model\": {\"name\": \"mlp\", \"hidden\": [128, 64]},
    \"data\": {\"format\": \"idx\"},
    \"optimizer\": {\"name\": \"sgd\", \"learningRate\": 0.1, \"momentum\": 0.9},
    \"globalBatchSize\": 64,
    \"epochs\": 20
  }

As a worker of a TrainingJob it is started by roundhouse-agent, without arguments: rank and peers
come from the membership file, the rest from the environment (LOCAL_RANK, ROUNDHOUSE_*).

Exit codes: 0 done; 64 wrong configuration; 65 wrong data; 70 a defect; 75 lost a peer (try
again); 143 left on request.";

/// Trains a model on data, alone or with the other workers of a TrainingJob.
#[derive(Clone, Debug, Parser)]
#[command(name = "roundhouse-train", version, after_help = EXAMPLE)]
pub struct Cli {
    /// Train alone with this configuration (JSON).
    #[arg(long, value_name = "FILE", requires = "data_dir")]
    config: Option<PathBuf>,
    /// Where relative data paths of the configuration start.
    #[arg(long, value_name = "DIR", requires = "config")]
    data_dir: Option<PathBuf>,
    /// Write status and metrics files here, as a worker does.
    #[arg(long, value_name = "DIR", requires = "config")]
    run_dir: Option<PathBuf>,
    /// Write the final weights here (safetensors; rank 0 only).
    #[arg(long, value_name = "FILE", env = SAVE_WEIGHTS)]
    save_weights: Option<PathBuf>,
    /// How long a collective waits for its peers.
    #[arg(
        long,
        value_name = "SECONDS",
        env = COLLECTIVE_TIMEOUT_SECONDS,
        default_value_t = DEFAULT_COLLECTIVE_TIMEOUT_SECONDS,
        value_parser = clap::value_parser!(u64).range(1..=86_400)
    )]
    collective_timeout_seconds: u64,
}

impl Cli {
    /// What to launch; without `--config` the environment says it, read through `get`.
    ///
    /// # Errors
    /// [`Failure::Environment`] names the variable that is missing or unreadable.
    pub fn launch(self, get: impl Fn(&str) -> Option<String>) -> Result<Launch, Failure> {
        let Self {
            config,
            data_dir,
            run_dir,
            save_weights,
            collective_timeout_seconds,
        } = self;
        let launch = match (config, data_dir) {
            (Some(config), Some(data_dir)) => Launch::alone(config, data_dir, run_dir),
            (Some(_), None) | (None, _) => Launch::from_environment(LaunchEnvironment::read(get)?)?,
        };
        Ok(Launch {
            save_weights: save_weights.filter(|path| !path.as_os_str().is_empty()),
            collective_timeout: Duration::from_secs(collective_timeout_seconds),
            ..launch
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use roundhouse_contract::ExitCode;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn without_arguments_the_environment_speaks() {
        let cli = Cli::try_parse_from(["roundhouse-train"]).unwrap();
        let failure = cli.launch(|_| None).unwrap_err();
        assert_eq!(failure.exit_code(), ExitCode::ConfigInvalid);
        assert!(failure.to_string().contains("LOCAL_RANK"), "{failure}");
    }

    #[test]
    fn a_configuration_needs_a_data_directory() {
        assert!(Cli::try_parse_from(["roundhouse-train", "--config", "c"]).is_err());
        let cli = Cli::try_parse_from(["roundhouse-train", "--config", "c", "--data-dir", "d"]);
        let launch = cli.unwrap().launch(|_| None).unwrap();
        assert_eq!(launch.data_dir, PathBuf::from("d"));
    }
}
