//! The environment of agent and trainer processes.
//!
//! Names of torchrun are used where they exist. A process of the built-in trainer starts in the
//! lobby, before any generation: it gets its local rank and the files to watch, and computes its
//! rank from the membership that it reads.

use std::collections::BTreeMap;
use std::path::PathBuf;

pub mod checkpoint;
pub mod device;
pub mod grace;
pub mod kubeflow;
pub mod local_copies;
pub mod nccl;
pub mod replica_pods;
pub mod script;
pub mod timeouts;
pub mod worker;

pub use checkpoint::CheckpointEnvironment;
pub use device::ExpectedDevice;
pub use grace::LeaveBudget;
pub use local_copies::LocalCopiesEnvironment;
pub use replica_pods::ReplicaPods;
pub use script::ScriptEnvironment;
pub use timeouts::CollectiveTimeouts;
pub use worker::{WorkerEnvironment, WorkerProgram, WorkerSite};

/// `metadata.name` of the job.
pub const JOB_NAME: &str = "ROUNDHOUSE_JOB_NAME";
/// `metadata.namespace` of the job.
pub const JOB_NAMESPACE: &str = "ROUNDHOUSE_JOB_NAMESPACE";
/// Index of the worker in its job, from 0.
pub const WORKER_INDEX: &str = "ROUNDHOUSE_WORKER_INDEX";
/// Number of processes that the agent starts.
pub const PROCS_PER_WORKER: &str = "ROUNDHOUSE_PROCS_PER_WORKER";
/// The worker's IP address, on which its collectives listen.
pub const POD_IP: &str = "ROUNDHOUSE_POD_IP";
/// Path of the file that shows the worker's [`crate::Membership`], and that processes watch.
pub const MEMBERSHIP_FILE: &str = "ROUNDHOUSE_MEMBERSHIP_FILE";
/// Path of the configuration of the built-in trainer, or of a program that is built on its
/// library. It is not set for a script, which joins with the Python package `roundhouse` and
/// has no such file.
pub const TRAINER_CONFIG_FILE: &str = "ROUNDHOUSE_TRAINER_CONFIG_FILE";
/// Path of the run directory, which the processes of a worker and its agent share.
pub const RUN_DIR: &str = "ROUNDHOUSE_RUN_DIR";
/// Directory at which relative data paths start.
pub const DATA_DIR: &str = "ROUNDHOUSE_DATA_DIR";
/// Port of the rendezvous store, which process 0 of this worker hosts.
pub const RENDEZVOUS_PORT: &str = "ROUNDHOUSE_RENDEZVOUS_PORT";
/// File to which rank 0 writes the final weights as safetensors; if not set, it writes none.
pub const SAVE_WEIGHTS: &str = "ROUNDHOUSE_SAVE_WEIGHTS";
/// Seconds in which ranks must connect, by default [`DEFAULT_CONNECT_TIMEOUT_SECONDS`].
pub const CONNECT_TIMEOUT_SECONDS: &str = "ROUNDHOUSE_CONNECT_TIMEOUT_SECONDS";
/// Default of [`CONNECT_TIMEOUT_SECONDS`], in seconds.
pub const DEFAULT_CONNECT_TIMEOUT_SECONDS: u64 = 120;
/// Seconds that a collective waits for its peers before the first step of
/// a generation is committed. By default that of later steps if it is
/// set, or else [`DEFAULT_FIRST_STEP_TIMEOUT_SECONDS`].
pub const FIRST_STEP_TIMEOUT_SECONDS: &str = "ROUNDHOUSE_FIRST_STEP_TIMEOUT_SECONDS";
/// Default of [`FIRST_STEP_TIMEOUT_SECONDS`], in seconds.
pub const DEFAULT_FIRST_STEP_TIMEOUT_SECONDS: u64 = 120;
/// Seconds that a collective of a later step waits for its peers. By default they are
/// learned from the longest step of the generation, see [`CollectiveTimeouts::of_step`], and
/// are at least [`DEFAULT_COLLECTIVE_TIMEOUT_SECONDS`].
pub const COLLECTIVE_TIMEOUT_SECONDS: &str = "ROUNDHOUSE_COLLECTIVE_TIMEOUT_SECONDS";
/// Least value of the learned timeout of later steps, in seconds.
pub const DEFAULT_COLLECTIVE_TIMEOUT_SECONDS: u64 = 30;
/// Seconds that a process may make no progress; 0 means without limit. Default: learned.
pub const STALL_TIMEOUT_SECONDS: &str = "ROUNDHOUSE_STALL_TIMEOUT_SECONDS";
/// How workers change from one generation to the next, as [`crate::Mode`]. Default: `InProcess`.
pub const MODE: &str = "ROUNDHOUSE_MODE";
/// The pod's `terminationGracePeriodSeconds`, which agent and trainer share
/// (see [`grace`]). Default: [`grace::DEFAULT_SECONDS`].
pub const TERMINATION_GRACE_SECONDS: &str = "ROUNDHOUSE_TERMINATION_GRACE_SECONDS";
/// Device of the worker, as [`ExpectedDevice`]: `cpu`, or `cuda*N` for N GPUs.
/// Default: any usable device.
pub const EXPECTED_DEVICE: &str = "ROUNDHOUSE_EXPECTED_DEVICE";
/// Newest generation in which a process of this local rank was before the agent restarted the
/// process. The new process takes no part in that generation or an older one. It may join a newer
/// one, even if it finds that membership at its start. Not set for the first process of a
/// container, which joins no generation that it finds at its start.
pub const LAST_SEEN_GENERATION: &str = "ROUNDHOUSE_LAST_SEEN_GENERATION";
/// Seconds between SIGTERM and SIGKILL of a process. Default: the pod's grace
/// without the agent's part.
pub const GRACE_SECONDS: &str = "ROUNDHOUSE_GRACE_SECONDS";
/// Seconds in which a failure of a script may turn out to be a consequence of a lost peer.
pub const PEER_FAILURE_WINDOW_SECONDS: &str = "ROUNDHOUSE_PEER_FAILURE_WINDOW_SECONDS";
/// With `true`, the processes of a worker together hold one copy of the state, as a replica: they
/// start and end together. Default: each process holds a copy.
pub const SHARDED: &str = "ROUNDHOUSE_SHARDED";
/// Path of a file with which the processes of one replica find each other. The agent gives each
/// process of a sharded worker the same path, and another one whenever it starts them again. The
/// file does not exist before a process creates it.
pub const REPLICA_FILE: &str = "ROUNDHOUSE_REPLICA_FILE";
/// Number of pods of a replica. With more than one, the agent starts no process before
/// [`REPLICA_PLACE_FILE`] shows a life. Default: 1.
pub const PODS_PER_REPLICA: &str = "ROUNDHOUSE_PODS_PER_REPLICA";
/// File that shows this pod its [`crate::ReplicaPlace`].
pub const REPLICA_PLACE_FILE: &str = "ROUNDHOUSE_REPLICA_PLACE_FILE";
/// Identifier of the life of a replica of several pods.
pub const REPLICA_LIFE: &str = "ROUNDHOUSE_REPLICA_LIFE";
/// Index of this pod in its replica of several pods.
pub const REPLICA_POD: &str = "ROUNDHOUSE_REPLICA_POD";
/// Port of the store of a replica of several pods, at the first of its addresses.
pub const REPLICA_STORE_PORT: &str = "ROUNDHOUSE_REPLICA_STORE_PORT";
/// IP addresses of the pods of a replica of several pods, separated by commas; if not set, the
/// replica has one pod.
pub const REPLICA_ADDRESSES: &str = "ROUNDHOUSE_REPLICA_ADDRESSES";
/// For each of these pods the index of the pod that holds second copies of its part of the state,
/// or `-`, separated by commas; if not set, there are none.
pub const REPLICA_HOLDERS: &str = "ROUNDHOUSE_REPLICA_HOLDERS";
/// Process id of the parent; the process ends when the parent ends. In a pod the kernel does this.
pub const END_WITH_PARENT: &str = "ROUNDHOUSE_END_WITH_PARENT";
/// Directory of checkpoints and the ledger, shared by all workers; if not set, none are written.
pub const CHECKPOINT_DIR: &str = "ROUNDHOUSE_CHECKPOINT_DIR";
/// UID of the job, which is reported with its progress. Files of another job in the
/// checkpoint directory count as older than all files of this one. If not set, they count as
/// files of this job.
pub const JOB_UID: &str = "ROUNDHOUSE_JOB_UID";
/// Number of committed steps between checkpoints; if not set, steps do not make a checkpoint due.
pub const CHECKPOINT_EVERY_STEPS: &str = "ROUNDHOUSE_CHECKPOINT_EVERY_STEPS";
/// Age in seconds at which the newest checkpoint is followed by the next one; if not set, the age
/// does not make a checkpoint due.
pub const CHECKPOINT_EVERY_SECONDS: &str = "ROUNDHOUSE_CHECKPOINT_EVERY_SECONDS";
/// Number of newest checkpoints that are kept. Default: 2.
pub const CHECKPOINT_KEEP: &str = "ROUNDHOUSE_CHECKPOINT_KEEP";
/// Metric of evaluations by which the best checkpoint is kept, as [`crate::BestMetric`]; if not
/// set, it is not kept.
pub const CHECKPOINT_BEST: &str = "ROUNDHOUSE_CHECKPOINT_BEST";
/// Directory of this worker alone in which processes keep copies of the state; if not set, they
/// keep none. It outlives the processes and containers of the worker.
pub const CHECKPOINT_LOCAL_DIR: &str = "ROUNDHOUSE_CHECKPOINT_LOCAL_DIR";
/// Number of committed steps between two local copies.
pub const CHECKPOINT_LOCAL_EVERY_STEPS: &str = "ROUNDHOUSE_CHECKPOINT_LOCAL_EVERY_STEPS";
/// Most bytes of local copies of all processes of the worker; if not set, they are not limited.
pub const CHECKPOINT_LOCAL_MAX_BYTES: &str = "ROUNDHOUSE_CHECKPOINT_LOCAL_MAX_BYTES";
/// File that shows this worker its [`crate::CopyPair`]; if not set, no other pod holds second
/// copies of its state, or the pods of its replica hold them for each other ([`REPLICA_HOLDERS`]).
pub const CHECKPOINT_LOCAL_PAIR_FILE: &str = "ROUNDHOUSE_CHECKPOINT_LOCAL_PAIR_FILE";
/// Seconds without progress on the checkpoint volume after which a load or the last save fails. A
/// warning is logged after a tenth of them. Default: [`DEFAULT_CHECKPOINT_IO_TIMEOUT_SECONDS`].
pub const CHECKPOINT_IO_TIMEOUT_SECONDS: &str = "ROUNDHOUSE_CHECKPOINT_IO_TIMEOUT_SECONDS";
/// With `false`, the ranks do not compare their states before they save one. Default: they do.
pub const COMPARE_REPLICAS: &str = "ROUNDHOUSE_COMPARE_REPLICAS";
/// Default of [`CHECKPOINT_IO_TIMEOUT_SECONDS`], in seconds.
pub const DEFAULT_CHECKPOINT_IO_TIMEOUT_SECONDS: u64 = 600;
/// Rank of the process on its worker, from 0 (as in torchrun).
pub const LOCAL_RANK: &str = "LOCAL_RANK";
/// Number of processes of the worker (as in torchrun).
pub const LOCAL_WORLD_SIZE: &str = "LOCAL_WORLD_SIZE";

/// The environment of each process that stays for all generations: of the built-in trainer, or of
/// a script that joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchEnvironment {
    /// Rank on this worker, from 0.
    pub local_rank: u32,
    /// Number of processes of this worker.
    pub local_world_size: u32,
    /// Whether the processes of this worker together hold one copy of the state.
    pub sharded: bool,
    /// The worker's IP address, on which its collectives listen.
    pub pod_ip: String,
    /// Port of the store, which the worker's process 0 hosts.
    pub rendezvous_port: u16,
    /// File to watch for the membership.
    pub membership_file: PathBuf,
    /// File with the configuration; `None` for a process of a script.
    pub trainer_config_file: Option<PathBuf>,
    /// Directory for status and metrics.
    pub run_dir: PathBuf,
    /// Directory at which relative data paths start.
    pub data_dir: PathBuf,
    /// Settings of checkpoints and ledger; `None` if there are none.
    pub checkpoint: Option<CheckpointEnvironment>,
}

/// A variable is missing or cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvironmentInvalid {
    /// Name of the variable, such as [`LOCAL_RANK`].
    pub variable: &'static str,
    /// The value that was found; `None` if it is not set.
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
    /// Names and values for a process to start.
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
        pairs.extend(self.sharded.then(|| (SHARDED, true.to_string())));
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
    /// Fails with the first variable that is missing or cannot be read.
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
            sharded: match get(SHARDED).filter(|text| !text.is_empty()) {
                None => false,
                Some(found) => number(SHARDED, found)?,
            },
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
            sharded: true,
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
                local: None,
            }),
        }
    }

    #[test]
    fn launch_environment_round_trips() {
        let pairs = environment().to_pairs();
        let read = LaunchEnvironment::read(|name| pairs.get(name).cloned());
        assert_eq!(read, Ok(environment()));
    }

    #[test]
    fn script_has_no_trainer_configuration() {
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
    fn processes_are_sharded_only_if_it_is_set() {
        let mut pairs = environment().to_pairs();
        for (found, is_sharded) in [
            (None, Ok(false)),
            (Some(""), Ok(false)),
            (Some("false"), Ok(false)),
            (Some("true"), Ok(true)),
            (Some("yes"), Err(SHARDED)),
        ] {
            pairs.remove(SHARDED);
            pairs.extend(found.map(|found| (SHARDED, found.to_owned())));
            let read = LaunchEnvironment::read(|name| pairs.get(name).cloned());
            let read = read.map(|it| it.sharded).map_err(|error| error.variable);
            assert_eq!(read, is_sharded, "{found:?}");
        }
    }

    #[test]
    fn missing_or_invalid_variable_is_named() {
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
