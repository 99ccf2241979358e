//! Command line and environment.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use roundhouse_contract::environment::{
    self, CheckpointEnvironment, CollectiveTimeouts, LocalCopiesEnvironment, checkpoint, grace,
};
use roundhouse_contract::{BestMetric, Mode, paths, ports};

use crate::watchdog::{Limits, Policy};

/// Starts PROGRAM once per training process and supervises it: forwards signals, collects logs and
/// metrics, reaps children, serves HTTP, and ends when the processes end.
///
/// In a worker's pod the operator sets all options. Without a pod:
/// `roundhouse-agent --procs 2 --run-dir /tmp/run --pod-ip 127.0.0.1 -- roundhouse-train`
#[derive(Clone, Debug, Parser)]
#[command(
    version,
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true
)]
pub struct Cli {
    /// A task other than running a program.
    #[command(subcommand)]
    pub task: Option<Task>,
    /// Options of the program.
    #[command(flatten)]
    pub options: Options,
}

/// Tasks of the agent besides running a program.
#[derive(Clone, Debug, Subcommand)]
pub enum Task {
    /// Copies this program into a directory, for an image without it.
    Install {
        /// Directory into which the program is copied.
        directory: PathBuf,
    },
    /// Prints the settings of NCCL and cuBLAS that processes start with, one `NAME=VALUE`
    /// per line, for `tests/gpu`.
    #[command(hide = true)]
    Environment,
    /// Replaces this process with a program that ends when the parent ends.
    #[command(hide = true, name = crate::bound::TASK)]
    Bound {
        /// The program and its arguments.
        #[arg(last = true, required = true, value_name = "PROGRAM")]
        command: Vec<String>,
    },
}

/// Options of a program.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Number of processes to start.
    #[arg(long, env = environment::PROCS_PER_WORKER, default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub procs: u32,
    /// What the processes do for a new generation: `InProcess`, they stay; `Restart`,
    /// the agent restarts them.
    #[arg(long, env = environment::MODE, default_value_t = Mode::InProcess)]
    pub mode: Mode,
    /// Whether the processes together hold one copy of the state: if one dies, the agent kills the
    /// others and restarts all.
    #[arg(long, env = environment::SHARDED)]
    pub sharded: bool,
    /// Number of pods whose processes together hold one copy of the state. With more than one, the
    /// processes start when the file of the place shows a life of the replica.
    #[arg(long, env = environment::PODS_PER_REPLICA, default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=64))]
    pub pods_per_replica: u32,
    /// File that shows this pod its place in a replica of several pods.
    #[arg(long, env = environment::REPLICA_PLACE_FILE,
          default_value_os_t = PathBuf::from(paths::PODINFO_DIR).join(paths::REPLICA_PLACE_FILE))]
    pub replica_place_file: PathBuf,
    /// Name of the job, which scripts receive as the name of the run.
    #[arg(long, env = environment::JOB_NAME, default_value = "roundhouse")]
    pub job: String,
    /// Index of this worker, for the log prefix.
    #[arg(long, env = environment::WORKER_INDEX, default_value_t = 0)]
    pub worker_index: u32,
    /// File that shows this worker its place in a generation.
    #[arg(long, env = environment::MEMBERSHIP_FILE,
          default_value_os_t = PathBuf::from(paths::PODINFO_DIR).join(paths::MEMBERSHIP_FILE))]
    pub membership_file: PathBuf,
    /// File with the trainer's configuration. Without it PROGRAM is a script,
    /// which joins with `roundhouse.join()`.
    #[arg(long, env = environment::TRAINER_CONFIG_FILE)]
    pub trainer_config_file: Option<PathBuf>,
    /// Directory in which the processes report.
    #[arg(long, env = environment::RUN_DIR, default_value = paths::RUN_DIR)]
    pub run_dir: PathBuf,
    /// Directory where relative data paths start.
    #[arg(long, env = environment::DATA_DIR, default_value = paths::DATA_DIR)]
    pub data_dir: PathBuf,
    /// Options of checkpoints and the ledger.
    #[command(flatten)]
    pub checkpoint: CheckpointOptions,
    /// Address of this worker, on which collectives listen.
    #[arg(long, env = environment::POD_IP, default_value = "127.0.0.1")]
    pub pod_ip: String,
    /// Port of the rendezvous store that process 0 hosts.
    #[arg(long, env = environment::RENDEZVOUS_PORT, default_value_t = ports::RENDEZVOUS)]
    pub rendezvous_port: u16,
    /// Address on which HTTP is served. Port 0 takes any free port and prints it.
    #[arg(long, env = "ROUNDHOUSE_HTTP_ADDRESS",
          default_value_t = ports::everywhere(ports::AGENT_HTTP))]
    pub http_address: SocketAddr,
    /// Seconds between SIGTERM and SIGKILL of the whole worker, which the agent shares with
    /// its processes. Default: 30.
    #[arg(long, env = environment::TERMINATION_GRACE_SECONDS)]
    pub termination_grace_seconds: Option<u64>,
    /// Seconds between SIGTERM and SIGKILL of a process. Default and maximum: the seconds of the
    /// whole worker minus a sixth, but at most minus 5 s.
    #[arg(long, env = environment::GRACE_SECONDS)]
    pub grace_seconds: Option<u64>,
    /// In mode Restart, seconds in which the error of a process may turn out to be that of a peer:
    /// if a newer generation arrives, the worker continues in it.
    #[arg(long, env = environment::PEER_FAILURE_WINDOW_SECONDS, default_value_t = 5)]
    pub peer_failure_window_seconds: u64,
    /// Seconds without progress after which a process counts as hung; 0: never. Default:
    /// learned from its steps.
    #[arg(long, env = environment::STALL_TIMEOUT_SECONDS)]
    pub stall_timeout_seconds: Option<u64>,
    /// Seconds that the ranks of a generation may take to connect.
    #[arg(long, env = environment::CONNECT_TIMEOUT_SECONDS,
          default_value_t = environment::DEFAULT_CONNECT_TIMEOUT_SECONDS,
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub connect_timeout_seconds: u64,
    /// Seconds that a collective waits for its peers in the first step of a generation. Default:
    /// 120, or half of the stall timeout.
    #[arg(long, env = environment::FIRST_STEP_TIMEOUT_SECONDS,
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub first_step_timeout_seconds: Option<u64>,
    /// Seconds that a collective waits for its peers in later steps. Default: learned from the
    /// longest step, or half of the stall timeout.
    #[arg(long, env = environment::COLLECTIVE_TIMEOUT_SECONDS,
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub collective_timeout_seconds: Option<u64>,
    /// File of the termination message.
    #[arg(long, env = "ROUNDHOUSE_TERMINATION_LOG", default_value = paths::TERMINATION_LOG)]
    pub termination_log: PathBuf,
    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub command: Vec<String>,
}

impl Options {
    /// Whether the program is a script of the user, not the built-in trainer or a
    /// program of its library.
    #[must_use]
    pub fn runs_script(&self) -> bool {
        self.mode == Mode::Restart || self.trainer_config_file.is_none()
    }

    /// Whether the processes together hold one copy of the state. Processes of mode Restart always
    /// restart together.
    #[must_use]
    pub fn is_sharded(&self) -> bool {
        self.sharded && self.mode == Mode::InProcess
    }

    /// Whether the processes of several pods together hold one copy of the state.
    #[must_use]
    pub fn has_large_replica(&self) -> bool {
        self.is_sharded() && self.pods_per_replica > 1
    }

    /// Whether the processes keep copies of their state in a volume of the pod.
    #[must_use]
    pub fn keeps_local_copies(&self) -> bool {
        self.checkpoint.local_copies().is_some()
    }

    /// UID of the job, if it was given.
    #[must_use]
    pub fn job_uid(&self) -> Option<&str> {
        self.checkpoint.job_uid.as_deref()
    }

    /// Limits of the time without progress.
    #[must_use]
    pub fn limits(&self) -> Limits {
        Limits {
            policy: Policy::from_seconds(self.stall_timeout_seconds),
            timeouts: self.timeouts(),
            runs_script: self.runs_script(),
        }
    }

    /// Timeouts of the collectives of the processes.
    #[must_use]
    pub fn timeouts(&self) -> CollectiveTimeouts {
        let given = |seconds: Option<u64>| seconds.map(Duration::from_secs);
        let half = Policy::from_seconds(self.stall_timeout_seconds).collective_timeout();
        CollectiveTimeouts {
            connect: Duration::from_secs(self.connect_timeout_seconds),
            first_step: given(self.first_step_timeout_seconds).or(half),
            later: given(self.collective_timeout_seconds).or(half),
        }
    }

    /// Time between SIGTERM and SIGKILL of a process.
    #[must_use]
    pub fn grace(&self) -> Duration {
        let own = self.grace_seconds.map(Duration::from_secs);
        let pods = self.termination_grace_seconds.map(Duration::from_secs);
        let most = pods.map(grace::kill_after);
        match (own, most) {
            (Some(own), Some(most)) => own.min(most),
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => grace::kill_after(Duration::from_secs(grace::DEFAULT_SECONDS)),
        }
    }

    /// Returns the environment of one process.
    #[must_use]
    pub fn launch_environment(&self, local_rank: u32) -> roundhouse_contract::LaunchEnvironment {
        roundhouse_contract::LaunchEnvironment {
            local_rank,
            local_world_size: self.procs,
            sharded: self.is_sharded(),
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

/// Options of checkpoints, which the processes receive.
#[derive(Clone, Debug, Args)]
pub struct CheckpointOptions {
    /// Directory, shared by all workers, of checkpoints and the ledger.
    #[arg(long, value_name = "DIR", env = environment::CHECKPOINT_DIR)]
    checkpoint_dir: Option<PathBuf>,
    /// Number of committed steps between two checkpoints.
    #[arg(long, value_name = "STEPS", env = environment::CHECKPOINT_EVERY_STEPS,
          value_parser = clap::value_parser!(u64).range(1..))]
    checkpoint_every_steps: Option<u64>,
    /// Number of seconds between two checkpoints.
    #[arg(long, value_name = "SECONDS", env = environment::CHECKPOINT_EVERY_SECONDS,
          value_parser = clap::value_parser!(u64).range(1..))]
    checkpoint_every_seconds: Option<u64>,
    /// Number of newest checkpoints to keep.
    #[arg(long, value_name = "NUMBER", env = environment::CHECKPOINT_KEEP,
          default_value_t = checkpoint::DEFAULT_KEEP,
          value_parser = clap::value_parser!(u32).range(i64::from(checkpoint::MIN_KEEP)..))]
    checkpoint_keep: u32,
    /// Also keep the best checkpoint by this number of the evaluations: loss,
    /// top1, top5 or perplexity.
    #[arg(long, value_name = "METRIC", env = environment::CHECKPOINT_BEST)]
    checkpoint_best: Option<BestMetric>,
    /// Directory of this worker alone for local copies of the state.
    #[arg(long, value_name = "DIRECTORY", env = environment::CHECKPOINT_LOCAL_DIR,
          requires = "checkpoint_local_every_steps")]
    checkpoint_local_dir: Option<PathBuf>,
    /// Number of committed steps between two local copies.
    #[arg(long, value_name = "STEPS", env = environment::CHECKPOINT_LOCAL_EVERY_STEPS,
          value_parser = clap::value_parser!(u64).range(1..))]
    checkpoint_local_every_steps: Option<u64>,
    /// Most bytes of the local copies of all processes.
    #[arg(long, value_name = "BYTES", env = environment::CHECKPOINT_LOCAL_MAX_BYTES,
          value_parser = clap::value_parser!(u64).range(1..))]
    checkpoint_local_max_bytes: Option<u64>,
    /// File that shows the pod with second copies of this worker's state.
    #[arg(long, value_name = "FILE", env = environment::CHECKPOINT_LOCAL_PAIR_FILE)]
    checkpoint_local_pair_file: Option<PathBuf>,
    /// UID of the job, which is reported with its progress. State of another job in that directory
    /// is older than all state of this one.
    #[arg(long, value_name = "UID", env = environment::JOB_UID)]
    job_uid: Option<String>,
}

impl CheckpointOptions {
    /// Directory of checkpoints and the ledger, if they are kept.
    pub(crate) fn dir(&self) -> Option<&Path> {
        self.checkpoint_dir.as_deref()
    }

    fn environment(&self) -> Option<CheckpointEnvironment> {
        Some(CheckpointEnvironment {
            dir: self.checkpoint_dir.clone()?,
            every_steps: self.checkpoint_every_steps,
            every_seconds: self.checkpoint_every_seconds,
            keep: self.checkpoint_keep,
            best: self.checkpoint_best,
            job_uid: self.job_uid.clone(),
            local: self.local_copies(),
        })
    }

    fn local_copies(&self) -> Option<LocalCopiesEnvironment> {
        Some(LocalCopiesEnvironment {
            dir: self.checkpoint_local_dir.clone()?,
            every_steps: self.checkpoint_local_every_steps?,
            max_bytes: self.checkpoint_local_max_bytes,
            pair_file: self.checkpoint_local_pair_file.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(std::iter::once(&"roundhouse-agent").chain(arguments))
    }

    #[test]
    fn program_is_required_and_keeps_its_own_options() {
        assert!(parse(&[]).is_err());
        let options = parse(&["--procs", "2", "--", "train", "--fast"])
            .unwrap()
            .options;
        assert_eq!(options.command, ["train", "--fast"]);
        assert_eq!(options.launch_environment(1).local_world_size, 2);
        assert_eq!(options.mode, Mode::InProcess);
    }

    #[test]
    fn program_without_trainer_config_is_a_script() {
        for (arguments, is_script) in [
            (&["--trainer-config-file", "/c"][..], false),
            (&[], true),
            (&["--mode", "Restart", "--trainer-config-file", "/c"], true),
        ] {
            assert_eq!(options(arguments).runs_script(), is_script, "{arguments:?}");
        }
    }

    #[test]
    fn program_with_the_name_of_a_task_is_a_program() {
        let cli = parse(&["--mode", "Restart", "--", "install", "/x"]).unwrap();
        assert!(cli.task.is_none());
        assert_eq!(cli.options.command, ["install", "/x"]);
    }

    #[test]
    fn installing_needs_no_program() {
        let Some(Task::Install { directory }) = parse(&["install", "/roundhouse"]).unwrap().task
        else {
            panic!("no task");
        };
        assert_eq!(directory, PathBuf::from("/roundhouse"));
    }

    fn options(arguments: &[&str]) -> Options {
        parse(&[arguments, &["--", "train"]].concat())
            .unwrap()
            .options
    }

    #[test]
    fn processes_are_killed_before_their_pod() {
        for (arguments, seconds) in [
            (&[][..], 25),
            (&["--termination-grace-seconds", "600"], 595),
            (&["--termination-grace-seconds", "6"], 5),
            (&["--grace-seconds", "60"], 60),
            (
                &["--grace-seconds", "60", "--termination-grace-seconds", "30"],
                25,
            ),
            (
                &["--grace-seconds", "60", "--termination-grace-seconds", "90"],
                60,
            ),
        ] {
            let grace = options(arguments).grace();
            assert_eq!(grace, Duration::from_secs(seconds), "{arguments:?}");
        }
    }

    #[test]
    fn collectives_time_out_before_the_stall_timeout() {
        let timeouts = options(&[]).timeouts();
        assert_eq!(timeouts, CollectiveTimeouts::default());
        let half = options(&["--stall-timeout-seconds", "600"]).timeouts();
        let five_minutes = Duration::from_secs(300);
        assert_eq!(
            (half.first_step, half.later),
            (Some(five_minutes), Some(five_minutes))
        );
        let given = options(&[
            "--stall-timeout-seconds",
            "600",
            "--collective-timeout-seconds",
            "7",
        ]);
        assert_eq!(given.timeouts().later, Some(Duration::from_secs(7)));
    }

    #[test]
    fn every_process_receives_the_checkpoint_options() {
        let checkpoint_of = |arguments: &[&str]| {
            let options = parse(&[arguments, &["--", "train"]].concat())
                .unwrap()
                .options;
            options.launch_environment(0).checkpoint
        };
        assert_eq!(checkpoint_of(&[]), None);
        let checkpoint =
            checkpoint_of(&["--checkpoint-dir", "/c", "--checkpoint-every-steps", "9"]);
        let checkpoint = checkpoint.unwrap();
        assert_eq!(checkpoint.every_steps, Some(9));
        assert_eq!(checkpoint.keep, checkpoint::DEFAULT_KEEP);
    }
}
