//! Command line and environment.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser};
use roundhouse_contract::environment::{self, CheckpointEnvironment, checkpoint};
use roundhouse_contract::{paths, ports};

/// Starts PROGRAM once per training process and looks after it: forwards signals, collects logs,
/// metrics and zombies, serves HTTP, and ends as the processes end.
///
/// In a worker's pod everything is set by the operator. By hand:
/// `roundhouse-agent --procs 2 --run-dir /tmp/run --pod-ip 127.0.0.1 -- roundhouse-train`
#[derive(Clone, Debug, Parser)]
#[command(version)]
pub struct Options {
    /// Processes to start.
    #[arg(long, env = environment::PROCS_PER_WORKER, default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub procs: u32,
    /// Index of this worker, for the log prefix.
    #[arg(long, env = environment::WORKER_INDEX, default_value_t = 0)]
    pub worker_index: u32,
    /// File that shows this worker its place in a generation.
    #[arg(long, env = environment::MEMBERSHIP_FILE,
          default_value_os_t = PathBuf::from(paths::PODINFO_DIR).join(paths::MEMBERSHIP_FILE))]
    pub membership_file: PathBuf,
    /// File with the trainer's configuration.
    #[arg(long, env = environment::TRAINER_CONFIG_FILE,
          default_value_os_t = PathBuf::from(paths::PODINFO_DIR).join(paths::TRAINER_CONFIG_FILE))]
    pub trainer_config_file: PathBuf,
    /// Directory in which the processes report.
    #[arg(long, env = environment::RUN_DIR, default_value = paths::RUN_DIR)]
    pub run_dir: PathBuf,
    /// Where relative data paths start.
    #[arg(long, env = environment::DATA_DIR, default_value = paths::DATA_DIR)]
    pub data_dir: PathBuf,
    /// Checkpoints and the ledger.
    #[command(flatten)]
    pub checkpoint: CheckpointOptions,
    /// This worker's address, where collectives listen.
    #[arg(long, env = environment::POD_IP, default_value = "127.0.0.1")]
    pub pod_ip: String,
    /// Port of the rendezvous store that process 0 hosts.
    #[arg(long, env = environment::RENDEZVOUS_PORT, default_value_t = ports::RENDEZVOUS)]
    pub rendezvous_port: u16,
    /// Where HTTP is served; port 0 takes any free one and prints it.
    #[arg(long, env = "ROUNDHOUSE_HTTP_ADDRESS",
          default_value_t = SocketAddr::from(([0, 0, 0, 0], ports::AGENT_HTTP)))]
    pub http_address: SocketAddr,
    /// Seconds between SIGTERM and SIGKILL.
    #[arg(long, env = "ROUNDHOUSE_GRACE_SECONDS", default_value_t = 25)]
    pub grace_seconds: u64,
    /// File for the termination message.
    #[arg(long, env = "ROUNDHOUSE_TERMINATION_LOG", default_value = paths::TERMINATION_LOG)]
    pub termination_log: PathBuf,
    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub command: Vec<String>,
}

impl Options {
    /// The environment of one process.
    #[must_use]
    pub fn launch_environment(&self, local_rank: u32) -> roundhouse_contract::LaunchEnvironment {
        roundhouse_contract::LaunchEnvironment {
            local_rank,
            local_world_size: self.procs,
            pod_ip: self.pod_ip.clone(),
            rendezvous_port: self.rendezvous_port,
            membership_file: self.membership_file.clone(),
            trainer_config_file: self.trainer_config_file.clone(),
            run_dir: self.run_dir.clone(),
            data_dir: self.data_dir.clone(),
            checkpoint: self.checkpoint.environment(),
        }
    }
}

/// What the processes are told about checkpoints.
#[expect(
    clippy::struct_field_names,
    reason = "the names of the options, which are beside others"
)]
#[derive(Clone, Debug, Args)]
pub struct CheckpointOptions {
    /// Directory shared by all workers where checkpoints and the ledger are kept.
    #[arg(long, value_name = "DIR", env = environment::CHECKPOINT_DIR)]
    checkpoint_dir: Option<PathBuf>,
    /// A checkpoint after every so many committed steps.
    #[arg(long, value_name = "STEPS", env = environment::CHECKPOINT_EVERY_STEPS,
          value_parser = clap::value_parser!(u64).range(1..))]
    checkpoint_every_steps: Option<u64>,
    /// A checkpoint when the last is so many seconds old.
    #[arg(long, value_name = "SECONDS", env = environment::CHECKPOINT_EVERY_SECONDS,
          value_parser = clap::value_parser!(u64).range(1..))]
    checkpoint_every_seconds: Option<u64>,
    /// How many of the newest checkpoints are kept.
    #[arg(long, value_name = "NUMBER", env = environment::CHECKPOINT_KEEP,
          default_value_t = checkpoint::DEFAULT_KEEP,
          value_parser = clap::value_parser!(u32).range(i64::from(checkpoint::MIN_KEEP)..))]
    checkpoint_keep: u32,
}

impl CheckpointOptions {
    fn environment(&self) -> Option<CheckpointEnvironment> {
        Some(CheckpointEnvironment {
            dir: self.checkpoint_dir.clone()?,
            every_steps: self.checkpoint_every_steps,
            every_seconds: self.checkpoint_every_seconds,
            keep: self.checkpoint_keep,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_required_and_keeps_its_own_options() {
        assert!(Options::try_parse_from(["roundhouse-agent"]).is_err());
        let options =
            Options::try_parse_from(["roundhouse-agent", "--procs", "2", "--", "train", "--fast"])
                .unwrap();
        assert_eq!(options.command, ["train", "--fast"]);
        assert_eq!(options.launch_environment(1).local_world_size, 2);
    }

    #[test]
    fn checkpoints_are_passed_on_to_every_process() {
        let told = |arguments: &[&str]| {
            let arguments = [&["roundhouse-agent"], arguments, &["--", "train"]].concat();
            let options = Options::try_parse_from(arguments).unwrap();
            options.launch_environment(0).checkpoint
        };
        assert_eq!(told(&[]), None);
        let checkpoint = told(&["--checkpoint-dir", "/c", "--checkpoint-every-steps", "9"]);
        let checkpoint = checkpoint.unwrap();
        assert_eq!(checkpoint.every_steps, Some(9));
        assert_eq!(checkpoint.keep, checkpoint::DEFAULT_KEEP);
    }
}
