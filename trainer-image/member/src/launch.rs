//! The launch parameters of a process, from the agent or the command line.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use roundhouse_contract::LaunchEnvironment;
use roundhouse_contract::environment::grace::{self, LeaveBudget, leave_budget};
use roundhouse_contract::environment::{
    CHECKPOINT_IO_TIMEOUT_SECONDS, COMPARE_REPLICAS, CheckpointEnvironment, CollectiveTimeouts,
    DEFAULT_CHECKPOINT_IO_TIMEOUT_SECONDS, EnvironmentInvalid, ExpectedDevice,
    LAST_SEEN_GENERATION, POD_IP, REPLICA_FILE, ReplicaPods,
};
use roundhouse_elastic::IoTimeout;
use roundhouse_report::{Process, Reporter};

use crate::blocking;
use crate::failure::Failure;

/// Default timeout of the checkpoint volume.
pub const CHECKPOINT_IO_TIMEOUT: IoTimeout =
    IoTimeout::new(Duration::from_secs(DEFAULT_CHECKPOINT_IO_TIMEOUT_SECONDS));

/// All parameters outside of the configuration file.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The configuration file; `None` for a script.
    pub config_file: Option<PathBuf>,
    /// Base of relative data paths.
    pub data_dir: PathBuf,
    /// Directory for status, metrics and failure files; `None`: no files are written.
    pub run_dir: Option<PathBuf>,
    /// Number of this process on its worker, from 0.
    pub local_rank: u32,
    /// Number of processes of this worker.
    pub local_world_size: u32,
    /// File in a directory through which the processes of this worker find each other, if they hold
    /// one copy of the state together.
    pub replica_file: Option<PathBuf>,
    /// The pods whose processes hold one copy of the state together; `None`: those of this worker
    /// do, or each process has one.
    pub replica_pods: Option<ReplicaPods>,
    /// Source of the process' place in a generation.
    pub source: Source,
    /// File for the final weights (safetensors), written by rank 0; `None`: not written.
    pub save_weights: Option<PathBuf>,
    /// Settings of checkpoints and ledger; `None`: there are none.
    pub checkpoint: Option<CheckpointEnvironment>,
    pub timeouts: CollectiveTimeouts,
    /// Time that the process may take to leave after a request.
    pub leave_budget: LeaveBudget,
    /// Device to compute on; `None`: any usable one.
    pub expected_device: Option<ExpectedDevice>,
    /// The newest generation of the process that this one replaces; `None`: it is the first of its
    /// container.
    pub last_seen_generation: Option<u64>,
    /// Timeout of the checkpoint volume.
    pub checkpoint_io_timeout: IoTimeout,
    /// Whether the ranks compare their states before a save.
    pub compares_replicas: bool,
}

/// Source of the process' place in a generation.
#[derive(Clone, Debug)]
pub enum Source {
    /// The process trains alone, without agent, membership or sockets.
    Alone,
    /// The process reads the membership file of the agent.
    Membership {
        /// Path of the file.
        file: PathBuf,
        /// This worker's address, on which its collectives listen.
        own_address: IpAddr,
        /// Port of the store that the worker's process 0 serves.
        rendezvous_port: u16,
    },
}

impl Launch {
    /// Launch of a process that the agent starts.
    ///
    /// # Errors
    /// [`EnvironmentInvalid`] if the worker's address is not an IP address.
    pub fn from_environment(environment: LaunchEnvironment) -> Result<Self, EnvironmentInvalid> {
        let LaunchEnvironment {
            local_rank,
            local_world_size,
            // The path of the file is set only then.
            sharded: _,
            pod_ip,
            rendezvous_port,
            membership_file,
            trainer_config_file,
            run_dir,
            data_dir,
            checkpoint,
        } = environment;
        let Ok(own_address) = pod_ip.parse() else {
            return Err(EnvironmentInvalid {
                variable: POD_IP,
                found: Some(pod_ip),
            });
        };
        Ok(Self {
            config_file: trainer_config_file,
            data_dir,
            run_dir: Some(run_dir),
            local_rank,
            local_world_size,
            replica_file: None,
            replica_pods: None,
            source: Source::Membership {
                file: membership_file,
                own_address,
                rendezvous_port,
            },
            save_weights: None,
            checkpoint,
            timeouts: CollectiveTimeouts::default(),
            leave_budget: leave_budget(Duration::from_secs(grace::DEFAULT_SECONDS)),
            expected_device: None,
            last_seen_generation: None,
            checkpoint_io_timeout: CHECKPOINT_IO_TIMEOUT,
            compares_replicas: true,
        })
    }

    /// Adds the other settings of the environment, read through `get`: timeouts, grace period, the
    /// expected device, the process before this one, and the I/O timeout of the volume.
    ///
    /// # Errors
    /// [`EnvironmentInvalid`] with the first variable that cannot be parsed.
    pub fn with_settings(
        self,
        get: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, EnvironmentInvalid> {
        let io_timeout = read(&get, CHECKPOINT_IO_TIMEOUT_SECONDS)?.map(Duration::from_secs);
        Ok(Self {
            timeouts: CollectiveTimeouts::read(&get)?,
            leave_budget: leave_budget(grace::read(&get)?),
            expected_device: ExpectedDevice::read(&get)?,
            replica_file: get(REPLICA_FILE)
                .filter(|path| !path.is_empty())
                .map(PathBuf::from),
            replica_pods: ReplicaPods::read(&get)?,
            last_seen_generation: read(&get, LAST_SEEN_GENERATION)?,
            checkpoint_io_timeout: io_timeout.map_or(CHECKPOINT_IO_TIMEOUT, IoTimeout::new),
            compares_replicas: get(COMPARE_REPLICAS).is_none_or(|value| value.trim() != "false"),
            ..self
        })
    }

    /// Launch of a process that trains alone.
    #[must_use]
    pub fn alone(config_file: PathBuf, data_dir: PathBuf, run_dir: Option<PathBuf>) -> Self {
        Self {
            config_file: Some(config_file),
            data_dir,
            run_dir,
            local_rank: 0,
            local_world_size: 1,
            replica_file: None,
            replica_pods: None,
            source: Source::Alone,
            save_weights: None,
            checkpoint: None,
            timeouts: CollectiveTimeouts::default(),
            leave_budget: leave_budget(Duration::from_secs(grace::DEFAULT_SECONDS)),
            expected_device: None,
            last_seen_generation: None,
            checkpoint_io_timeout: CHECKPOINT_IO_TIMEOUT,
            compares_replicas: true,
        }
    }

    /// Number of processes of a worker, which may have several pods.
    #[must_use]
    pub fn procs_per_replica(&self) -> u32 {
        let pods = self.replica_pods.as_ref().map_or(1, ReplicaPods::num_pods);
        self.local_world_size.saturating_mul(pods)
    }

    /// Index of this process among those of its worker.
    #[must_use]
    pub fn index_in_replica(&self) -> u32 {
        let pod = self.replica_pods.as_ref().map_or(0, |pods| pods.pod);
        pod.saturating_mul(self.local_world_size)
            .saturating_add(self.local_rank)
    }

    /// Starts the reports of this process.
    ///
    /// # Errors
    /// [`Failure::Internal`] if two metrics have one name, which is a defect.
    pub fn reporter(&self) -> Result<Reporter, Failure> {
        let reporter = Reporter::new(Process {
            run_dir: self.run_dir.as_deref(),
            local_rank: self.local_rank,
            local_world_size: self.local_world_size,
            num_abandoned_threads: blocking::num_abandoned,
        });
        reporter.map_err(|error| Failure::Internal(error.to_string()))
    }

    /// Number of compute threads of this process: its share of the cores, unless `OMP_NUM_THREADS`
    /// (passed as `wish`) sets another number.
    #[must_use]
    pub fn num_threads(&self, wish: Option<&str>, num_cores: usize) -> usize {
        let wish = wish
            .and_then(|text| text.trim().parse().ok())
            .filter(|wish| *wish > 0);
        let share = num_cores / usize::try_from(self.local_world_size).unwrap_or(1).max(1);
        wish.unwrap_or(share).max(1)
    }
}

/// Parses an optional whole number.
fn read(
    get: impl Fn(&str) -> Option<String>,
    variable: &'static str,
) -> Result<Option<u64>, EnvironmentInvalid> {
    let found = get(variable).filter(|text| !text.is_empty());
    let number = |found: String| {
        found.parse().map_err(|_| EnvironmentInvalid {
            variable,
            found: Some(found),
        })
    };
    found.map(number).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environment_sets_launch_and_bad_value_is_named() {
        let alone = || Launch::alone("c".into(), "d".into(), None);
        let set = |name: &'static str, value: &'static str| {
            move |asked: &str| (asked == name).then(|| value.to_owned())
        };
        let launch = alone()
            .with_settings(set(LAST_SEEN_GENERATION, "7"))
            .unwrap();
        assert_eq!(launch.last_seen_generation, Some(7));
        let none = alone()
            .with_settings(set(LAST_SEEN_GENERATION, ""))
            .unwrap();
        assert_eq!(none.last_seen_generation, None);
        let error = alone().with_settings(set(CHECKPOINT_IO_TIMEOUT_SECONDS, "soon"));
        let error = error.unwrap_err();
        assert_eq!(error.variable, CHECKPOINT_IO_TIMEOUT_SECONDS);
    }

    #[test]
    fn cores_are_shared_between_the_processes_of_a_worker() {
        let mut launch = Launch::alone("c".into(), "d".into(), None);
        assert_eq!(launch.num_threads(None, 8), 8);
        launch.local_world_size = 3;
        assert_eq!(launch.num_threads(None, 8), 2);
        launch.local_world_size = 16;
        assert_eq!(launch.num_threads(None, 8), 1);
        assert_eq!(launch.num_threads(Some("5"), 8), 5);
        assert_eq!(launch.num_threads(Some("many"), 8), 1);
    }

    #[test]
    fn processes_are_counted_over_the_pods_of_a_replica() {
        let mut launch = Launch::alone("c".into(), "d".into(), None);
        (launch.local_world_size, launch.local_rank) = (2, 1);
        assert_eq!(
            (launch.index_in_replica(), launch.procs_per_replica()),
            (1, 2)
        );
        launch.replica_pods = Some(ReplicaPods {
            life: "a1".to_owned(),
            pod: 2,
            addresses: vec![String::new(); 3],
            holders: Vec::new(),
        });
        assert_eq!(
            (launch.index_in_replica(), launch.procs_per_replica()),
            (5, 6)
        );
    }
}
