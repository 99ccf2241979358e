//! The command line of `roundhouse-train`. In a worker the program has no arguments: the agent sets
//! the environment instead.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use roundhouse_contract::environment::{
    CHECKPOINT_IO_TIMEOUT_SECONDS, COLLECTIVE_TIMEOUT_SECONDS, CheckpointEnvironment,
    CollectiveTimeouts, DEFAULT_CHECKPOINT_IO_TIMEOUT_SECONDS, SAVE_WEIGHTS, checkpoint,
};
use roundhouse_contract::{BestMetric, LaunchEnvironment};
use roundhouse_elastic::IoTimeout;
use roundhouse_member::Launch;

use crate::failure::Failure;

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

What it can do besides: roundhouse-train audit --help, roundhouse-train export --help

Exit codes: 0 done; 64 wrong configuration; 65 wrong data; 70 a defect, or out of memory; 74 the checkpoint
volume has failed; 75 lost a peer, or a newer generation has taken over (try again); 77 a GPU has failed, or one
that was asked for cannot be used; 143 left on request.";

/// Trains a model on data, alone or with the other workers of a TrainingJob.
#[derive(Clone, Debug, Parser)]
#[command(name = "roundhouse-train", version, after_help = EXAMPLE, args_conflicts_with_subcommands = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    train: Train,
}

/// A command other than training.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Prove from a training's ledger that every sample was used exactly once per epoch.
    ///
    /// The ledger has a line for each committed step: which samples, of which epoch, and a hash
    /// over everything before it. The audit recomputes the hashes, follows the generations back
    /// from the newest one, and checks that no sample of an epoch was left out or used twice. A job
    /// that is applied again over the same directory is the next run: its generations start at 1.
    /// Lines from which no newer generation continued are superseded: their steps were committed,
    /// lost and repeated. The audit counts and names them, with the state from which the newer
    /// generation continued.
    #[command(after_help = AUDIT_EXAMPLE)]
    Audit {
        /// The checkpoint directory of the job: NAMESPACE/JOB below /checkpoints in its pods;
        /// DIR/state of a `kubectl roundhouse run --local --dir DIR`.
        #[arg(required_unless_present = "compare")]
        dir: Option<PathBuf>,
        /// Instead, print in one line whether two trainings are equal bit for bit: the samples and
        /// losses of all steps that both have, and the newest checkpoint of one step. Generations
        /// may differ. With `trainer.slices` trainings are equal for every number of workers and
        /// every history of failures.
        #[arg(long, num_args = 2, value_names = ["A", "B"], conflicts_with = "dir")]
        compare: Option<Vec<PathBuf>>,
        /// Print the result as one JSON object for programs: whether the ledger is proven, and the
        /// generations with their repeated steps.
        #[arg(long, conflicts_with = "compare")]
        json: bool,
    },
    /// Write the weights of a checkpoint as one safetensors file.
    ///
    /// Each rank saves its part of a checkpoint, so a tensor may be split over several files. The
    /// export joins the parts and verifies every byte. The file uses the names of torchvision and
    /// Transformers, so `load_state_dict` and `from_pretrained` read it. If the job averages its
    /// weights (EMA), the export contains the averages. The job may train meanwhile.
    #[command(after_help = EXPORT_EXAMPLE)]
    Export {
        /// The checkpoint directory of the job: NAMESPACE/JOB below /checkpoints in its pods;
        /// DIR/state of a `kubectl roundhouse run --local --dir DIR`.
        dir: PathBuf,
        /// The file to write, such as model.safetensors. It is replaced if it exists.
        out: PathBuf,
        /// The best checkpoint by checkpoint.best, instead of the newest one.
        #[arg(long, conflicts_with = "checkpoint")]
        best: bool,
        /// The checkpoint of this name, such as gen-0000000003-step-000000001000.
        #[arg(long, value_name = "NAME")]
        checkpoint: Option<String>,
        /// Export every tensor of the checkpoint under its full name: the weights as model.*, the
        /// optimizer's state as optimizer.*, and the tensors of a script's own state.
        #[arg(long)]
        all: bool,
    },
}

const EXPORT_EXAMPLE: &str = "\
From a running job to this machine:
  kubectl exec JOB-worker-0-0 -- roundhouse-train export /checkpoints/NAMESPACE/JOB /tmp/model.safetensors
  kubectl cp JOB-worker-0-0:/tmp/model.safetensors model.safetensors

In Python:
  from safetensors.torch import load_file
  model.load_state_dict(load_file(\"model.safetensors\"))
Exit codes: 0 exported; 64 there is no such checkpoint, or it has no weights; 65 the checkpoint is damaged; 74 the file
cannot be written.";

const AUDIT_EXAMPLE: &str = "\
In a running job:
  kubectl exec JOB-worker-0-0 -- roundhouse-train audit /checkpoints/NAMESPACE/JOB

Two trainings:
  roundhouse-train audit --compare DIR-A/state DIR-B/state
Exit codes: 0 proven, or equal; 65 not proven, and the first gap, repeat or broken hash is named, or
different; 74 not known, because a file on the volume cannot be read, which is named.";

/// Options of a training.
#[derive(Clone, Debug, Args)]
struct Train {
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
    /// How long a collective of a step waits for its peers. Default: three times the longest step,
    /// at least 30 s.
    #[arg(
        long,
        value_name = "SECONDS",
        env = COLLECTIVE_TIMEOUT_SECONDS,
        value_parser = clap::value_parser!(u64).range(1..=86_400)
    )]
    collective_timeout_seconds: Option<u64>,
    /// How long the checkpoint volume may transfer no byte before a load or the final save fails.
    #[arg(
        long,
        value_name = "SECONDS",
        env = CHECKPOINT_IO_TIMEOUT_SECONDS,
        default_value_t = DEFAULT_CHECKPOINT_IO_TIMEOUT_SECONDS,
        value_parser = clap::value_parser!(u64).range(1..=86_400)
    )]
    checkpoint_io_timeout_seconds: u64,
    #[command(flatten)]
    checkpointing: Checkpointing,
}

/// Checkpoint options of a process that trains alone. A worker reads its environment instead.
#[expect(clippy::struct_field_names, reason = "the command line's option names")]
#[derive(Clone, Debug, Args)]
struct Checkpointing {
    /// Keep checkpoints and the ledger here, and continue from the newest checkpoint.
    #[arg(long, value_name = "DIR", requires = "config")]
    checkpoint_dir: Option<PathBuf>,
    /// Save a checkpoint after this number of steps.
    #[arg(long, value_name = "STEPS", requires = "checkpoint_dir",
          value_parser = clap::value_parser!(u64).range(1..))]
    checkpoint_every_steps: Option<u64>,
    /// Save a checkpoint when the last one is this number of seconds old.
    #[arg(long, value_name = "SECONDS", requires = "checkpoint_dir",
          value_parser = clap::value_parser!(u64).range(1..))]
    checkpoint_every_seconds: Option<u64>,
    /// Number of newest checkpoints to keep.
    #[arg(long, value_name = "NUMBER", default_value_t = checkpoint::DEFAULT_KEEP,
          value_parser = clap::value_parser!(u32).range(i64::from(checkpoint::MIN_KEEP)..))]
    checkpoint_keep: u32,
    /// Also keep the best checkpoint, by this evaluation metric: loss, top1, top5 or perplexity.
    #[arg(long, value_name = "METRIC", requires = "checkpoint_dir")]
    checkpoint_best: Option<BestMetric>,
}

impl Checkpointing {
    fn environment(self) -> Option<CheckpointEnvironment> {
        Some(CheckpointEnvironment {
            dir: self.checkpoint_dir?,
            every_steps: self.checkpoint_every_steps,
            every_seconds: self.checkpoint_every_seconds,
            keep: self.checkpoint_keep,
            best: self.checkpoint_best,
            job_uid: None,
            local: None,
        })
    }
}

impl Cli {
    /// The command, unless it is to train.
    #[must_use]
    pub const fn other_command(&self) -> Option<&Command> {
        self.command.as_ref()
    }

    /// The training to launch. Without `--config` it comes from the environment variables that
    /// `get` reads.
    ///
    /// # Errors
    /// [`Failure::Environment`] with the variable that is missing or unreadable.
    pub fn launch(self, get: impl Fn(&str) -> Option<String>) -> Result<Launch, Failure> {
        let Train {
            config,
            data_dir,
            run_dir,
            save_weights,
            collective_timeout_seconds,
            checkpoint_io_timeout_seconds,
            checkpointing,
        } = self.train;
        let launch = match (config, data_dir) {
            (Some(config), Some(data_dir)) => Launch {
                checkpoint: checkpointing.environment(),
                ..Launch::alone(config, data_dir, run_dir)
            },
            (Some(_), None) | (None, _) => {
                Launch::from_environment(LaunchEnvironment::read(&get)?)?
            }
        };
        let launch = launch.with_settings(&get)?;
        let collective = collective_timeout_seconds.map(Duration::from_secs);
        Ok(Launch {
            save_weights: save_weights.filter(|path| !path.as_os_str().is_empty()),
            timeouts: CollectiveTimeouts {
                later: collective,
                ..launch.timeouts
            },
            checkpoint_io_timeout: IoTimeout::new(Duration::from_secs(
                checkpoint_io_timeout_seconds,
            )),
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
    fn command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn launch_without_arguments_reads_the_environment() {
        let cli = Cli::try_parse_from(["roundhouse-train"]).unwrap();
        let failure = cli.launch(|_| None).unwrap_err();
        assert_eq!(failure.exit_code(), ExitCode::ConfigInvalid);
        assert!(failure.to_string().contains("LOCAL_RANK"), "{failure}");
    }

    #[test]
    fn configuration_needs_a_data_directory() {
        assert!(Cli::try_parse_from(["roundhouse-train", "--config", "c"]).is_err());
        assert!(Cli::try_parse_from(["roundhouse-train", "--checkpoint-dir", "c"]).is_err());
        let cli = Cli::try_parse_from(["roundhouse-train", "--config", "c", "--data-dir", "d"]);
        let launch = cli.unwrap().launch(|_| None).unwrap();
        assert_eq!(launch.data_dir, PathBuf::from("d"));
        assert!(launch.checkpoint.is_none());
    }
}
