//! The environment of agent and trainer processes.
//!
//! Names of torchrun are kept where they exist. A process of the built-in trainer starts in the
//! lobby, before any generation: it gets its local place and the files to watch, and computes
//! its rank from the membership it reads.

use std::collections::BTreeMap;
use std::path::PathBuf;

pub mod checkpoint;
pub mod device;
pub mod grace;
pub mod nccl;
pub mod script;
pub mod timeouts;
pub mod worker;

pub use checkpoint::CheckpointEnvironment;
pub use device::ExpectedDevice;
pub use grace::LeaveBudget;
pub use script::ScriptEnvironment;
pub use timeouts::CollectiveTimeouts;
pub use worker::{WorkerEnvironment, WorkerProgram, WorkerSite};

/// Name of the job.
pub const JOB_NAME: &str = "ROUNDHOUSE_JOB_NAME";
/// Namespace of the job.
pub const JOB_NAMESPACE: &str = "ROUNDHOUSE_JOB_NAMESPACE";
/// Index of the worker.
pub const WORKER_INDEX: &str = "ROUNDHOUSE_WORKER_INDEX";
/// Processes the agent starts.
pub const PROCS_PER_WORKER: &str = "ROUNDHOUSE_PROCS_PER_WORKER";
/// The worker's own IP address, where its collectives listen.
pub const POD_IP: &str = "ROUNDHOUSE_POD_IP";
/// Path of the membership file.
pub const MEMBERSHIP_FILE: &str = "ROUNDHOUSE_MEMBERSHIP_FILE";
/// Path of the configuration of the built-in trainer, or of a program that is built on its library; not set: the
/// processes are those of a script, which joins with the Python package `roundhouse` and has no such file.
pub const TRAINER_CONFIG_FILE: &str = "ROUNDHOUSE_TRAINER_CONFIG_FILE";
/// Path of the run directory.
pub const RUN_DIR: &str = "ROUNDHOUSE_RUN_DIR";
/// Where relative data paths start.
pub const DATA_DIR: &str = "ROUNDHOUSE_DATA_DIR";
/// Port of the rendezvous store that this worker's process 0 hosts.
pub const RENDEZVOUS_PORT: &str = "ROUNDHOUSE_RENDEZVOUS_PORT";
/// Where rank 0 writes the final weights as safetensors; not set: nowhere.
pub const SAVE_WEIGHTS: &str = "ROUNDHOUSE_SAVE_WEIGHTS";
/// How long the ranks of a generation may take to connect, in seconds; not set:
/// [`DEFAULT_CONNECT_TIMEOUT_SECONDS`].
pub const CONNECT_TIMEOUT_SECONDS: &str = "ROUNDHOUSE_CONNECT_TIMEOUT_SECONDS";
/// How long ranks may take to connect if the variable is not set.
pub const DEFAULT_CONNECT_TIMEOUT_SECONDS: u64 = 120;
/// How long a collective waits for its peers before the first step of a generation is committed, in seconds; not
/// set: that of later steps if that is set, else [`DEFAULT_FIRST_STEP_TIMEOUT_SECONDS`].
pub const FIRST_STEP_TIMEOUT_SECONDS: &str = "ROUNDHOUSE_FIRST_STEP_TIMEOUT_SECONDS";
/// How long a collective of a first step waits if the variable is not set.
pub const DEFAULT_FIRST_STEP_TIMEOUT_SECONDS: u64 = 120;
/// How long a collective of a later step waits for its peers, in seconds; not set: learned from the longest step of
/// the generation, at least [`DEFAULT_COLLECTIVE_TIMEOUT_SECONDS`] (see [`CollectiveTimeouts::of_step`]).
pub const COLLECTIVE_TIMEOUT_SECONDS: &str = "ROUNDHOUSE_COLLECTIVE_TIMEOUT_SECONDS";
/// Least time that a collective of a later step waits if the variable is not set.
pub const DEFAULT_COLLECTIVE_TIMEOUT_SECONDS: u64 = 30;
/// How long a process may make no progress, in seconds; not set: learned; 0: for ever.
pub const STALL_TIMEOUT_SECONDS: &str = "ROUNDHOUSE_STALL_TIMEOUT_SECONDS";
/// How workers go from one generation to the next, as [`crate::Mode`]; not set: `InProcess`.
pub const MODE: &str = "ROUNDHOUSE_MODE";
/// The pod's `terminationGracePeriodSeconds`, which agent and trainer share (see [`grace`]); not set:
/// [`grace::DEFAULT_SECONDS`].
pub const TERMINATION_GRACE_SECONDS: &str = "ROUNDHOUSE_TERMINATION_GRACE_SECONDS";
/// What the worker is to compute on, as [`ExpectedDevice`]: `cpu`, or `cuda*N` for N GPUs; not set: whatever can be
/// used.
pub const EXPECTED_DEVICE: &str = "ROUNDHOUSE_EXPECTED_DEVICE";
/// Newest generation in which a process of this local rank was before the agent started this one in its place. The
/// process takes no part in that generation or an older one; it may join a newer one, even if it finds its document
/// at its start. Not set for the first process of a container, which joins no generation that it finds.
pub const LAST_SEEN_GENERATION: &str = "ROUNDHOUSE_LAST_SEEN_GENERATION";
/// Seconds between SIGTERM and SIGKILL of a process; not set: the pod's grace without the agent's part.
pub const GRACE_SECONDS: &str = "ROUNDHOUSE_GRACE_SECONDS";
/// Seconds for which the failure of a script may turn out to be that of a peer.
pub const PEER_FAILURE_WINDOW_SECONDS: &str = "ROUNDHOUSE_PEER_FAILURE_WINDOW_SECONDS";
/// Process id of the one that started it: the process ends when that one does. In a pod the kernel sees to
/// that.
pub const END_WITH_PARENT: &str = "ROUNDHOUSE_END_WITH_PARENT";
/// Where checkpoints and the ledger are kept, shared by all workers; not set: nowhere.
pub const CHECKPOINT_DIR: &str = "ROUNDHOUSE_CHECKPOINT_DIR";
/// UID of the job, which is told with its progress. What another job has left in the directory of checkpoints is older
/// than all of this one. Not set: it counts as this one's.
pub const JOB_UID: &str = "ROUNDHOUSE_JOB_UID";
/// A checkpoint after every so many committed steps; not set: steps do not make one due.
pub const CHECKPOINT_EVERY_STEPS: &str = "ROUNDHOUSE_CHECKPOINT_EVERY_STEPS";
/// A checkpoint when the last is so many seconds old; not set: time does not make one due.
pub const CHECKPOINT_EVERY_SECONDS: &str = "ROUNDHOUSE_CHECKPOINT_EVERY_SECONDS";
/// How many of the newest checkpoints are kept; not set: 2.
pub const CHECKPOINT_KEEP: &str = "ROUNDHOUSE_CHECKPOINT_KEEP";
/// By which number of evaluations the best checkpoint is kept, as [`crate::BestMetric`]; not set: it is not kept.
pub const CHECKPOINT_BEST: &str = "ROUNDHOUSE_CHECKPOINT_BEST";
/// How long the checkpoint volume may take or give nothing before a load or the last save is given up, in
/// seconds; it is told of after a tenth of it. Not set: [`DEFAULT_CHECKPOINT_IO_TIMEOUT_SECONDS`].
pub const CHECKPOINT_IO_TIMEOUT_SECONDS: &str = "ROUNDHOUSE_CHECKPOINT_IO_TIMEOUT_SECONDS";
/// `false`: the ranks do not compare their states before they save one. Not set: they do.
pub const COMPARE_REPLICAS: &str = "ROUNDHOUSE_COMPARE_REPLICAS";
/// How long the checkpoint volume is waited for if nobody says otherwise.
pub const DEFAULT_CHECKPOINT_IO_TIMEOUT_SECONDS: u64 = 600;
/// Place of the process on its worker, from 0 (as torchrun).
pub const LOCAL_RANK: &str = "LOCAL_RANK";
/// Processes of the worker (as torchrun).
pub const LOCAL_WORLD_SIZE: &str = "LOCAL_WORLD_SIZE";

/// What the agent gives each process that stays for all generations: of the built-in trainer, or of a script that joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchEnvironment {
    /// Place on this worker, from 0.
    pub local_rank: u32,
    /// Processes of this worker.
    pub local_world_size: u32,
    /// The worker's own IP address.
    pub pod_ip: String,
    /// Port of the store that the worker's process 0 hosts.
    pub rendezvous_port: u16,
    /// File to watch for the membership.
    pub membership_file: PathBuf,
    /// File with the configuration; `None`: the process is a script's.
    pub trainer_config_file: Option<PathBuf>,
    /// Directory for status and metrics.
    pub run_dir: PathBuf,
    /// Where relative data paths start.
    pub data_dir: PathBuf,
    /// Checkpoints and ledger; `None`: there are none.
    pub checkpoint: Option<CheckpointEnvironment>,
}

/// A variable is missing or cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvironmentInvalid {
    /// Name of the variable.
    pub variable: &'static str,
    /// What was found; `None` if it is not set.
    pub found: Option<String>,
}

impl std::fmt::Display for EnvironmentInvalid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.found {
            None => write!(f, "environment variable {} is not set", self.variable),
            Some(found) => write!(
                f,
                "environment variable {}: bad value {found:?}",
                self.variable
            ),
        }
    }
}

impl std::error::Error for EnvironmentInvalid {}

impl LaunchEnvironment {
    /// Names and values, for a process to be started.
    #[must_use]
    pub fn to_pairs(&self) -> BTreeMap<&'static str, String> {
        let path = |path: &PathBuf| path.display().to_string();
        let mut pairs = BTreeMap::from([
            (LOCAL_RANK, self.local_rank.to_string()),
            (LOCAL_WORLD_SIZE, self.local_world_size.to_string()),
            (POD_IP, self.pod_ip.clone()),
            (RENDEZVOUS_PORT, self.rendezvous_port.to_string()),
            (MEMBERSHIP_FILE, path(&self.membership_file)),
            (RUN_DIR, path(&self.run_dir)),
            (DATA_DIR, path(&self.data_dir)),
        ]);
        let config = self.trainer_config_file.iter();
        pairs.extend(config.map(|file| (TRAINER_CONFIG_FILE, path(file))));
        pairs.extend(
            self.checkpoint
                .iter()
                .flat_map(CheckpointEnvironment::to_pairs),
        );
        pairs
    }

    /// Reads the environment through `get` (`|name| std::env::var(name).ok()`).
    ///
    /// # Errors
    /// Names the first variable that is missing or unreadable.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Result<Self, EnvironmentInvalid> {
        let get = &get;
        let text = |variable| {
            get(variable).ok_or(EnvironmentInvalid {
                variable,
                found: None,
            })
        };
        Ok(Self {
            local_rank: number(LOCAL_RANK, text(LOCAL_RANK)?)?,
            local_world_size: number(LOCAL_WORLD_SIZE, text(LOCAL_WORLD_SIZE)?)?,
            pod_ip: text(POD_IP)?,
            rendezvous_port: number(RENDEZVOUS_PORT, text(RENDEZVOUS_PORT)?)?,
            membership_file: text(MEMBERSHIP_FILE)?.into(),
            // An empty text counts as not set, as it does for checkpoints.
            trainer_config_file: get(TRAINER_CONFIG_FILE)
                .filter(|text| !text.is_empty())
                .map(PathBuf::from),
            run_dir: text(RUN_DIR)?.into(),
            data_dir: text(DATA_DIR)?.into(),
            checkpoint: CheckpointEnvironment::read(get)?,
        })
    }
}

fn number<T: std::str::FromStr>(
    variable: &'static str,
    text: String,
) -> Result<T, EnvironmentInvalid> {
    text.parse().map_err(|_| EnvironmentInvalid {
        variable,
        found: Some(text),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment() -> LaunchEnvironment {
        LaunchEnvironment {
            local_rank: 1,
            local_world_size: 2,
            pod_ip: "127.0.0.1".to_owned(),
            rendezvous_port: 29_500,
            membership_file: "/etc/roundhouse/membership".into(),
            trainer_config_file: Some("/etc/roundhouse/trainer-config".into()),
            run_dir: "/run/roundhouse".into(),
            data_dir: "/data".into(),
            checkpoint: Some(CheckpointEnvironment {
                dir: "/checkpoints".into(),
                every_steps: Some(100),
                every_seconds: None,
                keep: 2,
                best: None,
                job_uid: Some("uid".to_owned()),
            }),
        }
    }

    #[test]
    fn an_environment_reads_back_as_itself() {
        let pairs = environment().to_pairs();
        let read = LaunchEnvironment::read(|name| pairs.get(name).cloned());
        assert_eq!(read, Ok(environment()));
    }

    #[test]
    fn a_script_has_no_configuration_of_the_trainer() {
        let script = LaunchEnvironment {
            trainer_config_file: None,
            ..environment()
        };
        let mut pairs = script.to_pairs();
        assert!(!pairs.contains_key(TRAINER_CONFIG_FILE));
        for empty in [false, true] {
            if empty {
                pairs.insert(TRAINER_CONFIG_FILE, String::new());
            }
            let read = LaunchEnvironment::read(|name| pairs.get(name).cloned());
            assert_eq!(read.as_ref(), Ok(&script));
        }
    }

    #[test]
    fn a_missing_or_bad_variable_is_named() {
        let mut pairs = environment().to_pairs();
        pairs.insert(LOCAL_RANK, "one".to_owned());
        let error = LaunchEnvironment::read(|name| pairs.get(name).cloned()).unwrap_err();
        assert_eq!(
            error.to_string(),
            r#"environment variable LOCAL_RANK: bad value "one""#
        );
        pairs.remove(LOCAL_RANK);
        let error = LaunchEnvironment::read(|name| pairs.get(name).cloned()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "environment variable LOCAL_RANK is not set"
        );
    }
}
