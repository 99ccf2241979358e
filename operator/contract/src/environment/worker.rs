//! The environment of a worker's agent: in a pod of a cluster, or as a process of `run --local`.

use std::path::PathBuf;
use std::time::Duration;

use super::{
    CheckpointEnvironment, DATA_DIR, EXPECTED_DEVICE, ExpectedDevice, GRACE_SECONDS, JOB_NAME,
    JOB_NAMESPACE, JOB_UID, MEMBERSHIP_FILE, MODE, PEER_FAILURE_WINDOW_SECONDS, POD_IP,
    PODS_PER_REPLICA, PROCS_PER_WORKER, RENDEZVOUS_PORT, REPLICA_PLACE_FILE, RUN_DIR, SHARDED,
    STALL_TIMEOUT_SECONDS, TERMINATION_GRACE_SECONDS, TRAINER_CONFIG_FILE, WORKER_INDEX,
};
use crate::Mode;

/// Everything that a job passes to the agent of a worker, in a pod or on this machine. The planner
/// builds it from a validated job and a [`WorkerSite`], so nothing else can differ between the two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerEnvironment {
    /// `metadata.name` of the job.
    pub job_name: String,
    /// `metadata.namespace` of the job.
    pub job_namespace: String,
    /// `metadata.uid` of the job; a later job of the same name has another UID.
    pub job_uid: String,
    /// Index of the worker in its job, from 0.
    pub worker_index: u32,
    /// Number of processes that the agent starts.
    pub procs_per_worker: u32,
    /// Number of pods whose processes together hold one copy of the state, at least 1.
    pub pods_per_replica: u32,
    /// What each process runs, and the settings of that kind of program.
    pub program: WorkerProgram,
    /// Device of the processes; `None` for any usable device.
    pub expected_device: Option<ExpectedDevice>,
    /// Time between SIGTERM and SIGKILL of the worker.
    pub termination_grace: Duration,
    /// Seconds without progress after which a process counts as hung; `None` if the
    /// agent learns the time.
    pub stall_timeout_seconds: Option<u32>,
    /// Settings of checkpoints and the ledger; `None` if there are none. Their `job_uid` is
    /// not set: see [`Self::job_uid`].
    pub checkpoint: Option<CheckpointEnvironment>,
    /// IP address of the worker; `None` if the pod spec takes it from the pod's status.
    pub address: Option<String>,
    /// Port of the store, which the worker's process 0 hosts.
    pub rendezvous_port: u16,
    /// File to watch for the membership.
    pub membership_file: PathBuf,
    /// File to watch for the place in a replica of several pods.
    pub replica_place_file: PathBuf,
    /// Directory for status and metrics.
    pub run_dir: PathBuf,
}

/// The kind of program that the processes of a worker run, with its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerProgram {
    /// The built-in trainer, or a program on its library.
    Trainer {
        /// File with the [`crate::TrainerConfig`] as JSON.
        config_file: PathBuf,
        /// Directory at which relative data paths start.
        data_dir: PathBuf,
        /// Whether the processes of a worker together hold one copy of the state.
        sharded: bool,
    },
    /// A script that joins with the Python package `roundhouse`.
    Joining {
        /// Whether the processes of a worker together hold one copy of the state.
        sharded: bool,
    },
    /// A script that restarts in each generation.
    Restarting {
        /// Time in which its failure may turn out to be a consequence of a lost peer.
        peer_failure_window: Duration,
        /// Time between SIGTERM and SIGKILL of a process.
        leave_grace: Duration,
    },
}

/// The values that depend on where a worker runs: addresses, directories, devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerSite {
    /// IP address of the worker, see [`WorkerEnvironment::address`].
    pub address: Option<String>,
    /// Port of the store, see [`WorkerEnvironment::rendezvous_port`].
    pub rendezvous_port: u16,
    /// Watched file, see [`WorkerEnvironment::membership_file`].
    pub membership_file: PathBuf,
    /// Watched file, see [`WorkerEnvironment::replica_place_file`].
    pub replica_place_file: PathBuf,
    /// Run directory, see [`WorkerEnvironment::run_dir`].
    pub run_dir: PathBuf,
    /// File with the configuration of the built-in trainer.
    pub trainer_config_file: PathBuf,
    /// Directory at which relative data paths of the built-in trainer start.
    pub data_dir: PathBuf,
    /// Directory for checkpoints and the ledger of this job.
    pub checkpoint_dir: PathBuf,
    /// Directory of this worker alone for local copies.
    pub copies_dir: PathBuf,
    /// Watched file with the [`crate::CopyPair`]; `None` if all workers are on one machine, so that
    /// no other one can hold second copies.
    pub copy_pair_file: Option<PathBuf>,
    /// Device, see [`WorkerEnvironment::expected_device`]; `None` for any.
    pub expected_device: Option<ExpectedDevice>,
}

impl WorkerEnvironment {
    /// Names and values of all variables that are set, each once.
    #[must_use]
    pub fn to_pairs(&self) -> Vec<(&'static str, String)> {
        let Self {
            job_name,
            job_namespace,
            job_uid,
            worker_index,
            procs_per_worker,
            pods_per_replica,
            program,
            expected_device,
            termination_grace,
            stall_timeout_seconds,
            checkpoint,
            address,
            rendezvous_port,
            membership_file,
            replica_place_file,
            run_dir,
        } = self;
        let path = |path: &PathBuf| path.display().to_string();
        let seconds = |time: &Duration| time.as_secs().to_string();
        let mut pairs = vec![
            (JOB_NAME, job_name.clone()),
            (JOB_NAMESPACE, job_namespace.clone()),
            (JOB_UID, job_uid.clone()),
            (WORKER_INDEX, worker_index.to_string()),
            (PROCS_PER_WORKER, procs_per_worker.to_string()),
            (MEMBERSHIP_FILE, path(membership_file)),
            (RUN_DIR, path(run_dir)),
            (RENDEZVOUS_PORT, rendezvous_port.to_string()),
            (TERMINATION_GRACE_SECONDS, seconds(termination_grace)),
        ];
        pairs.extend(address.clone().map(|address| (POD_IP, address)));
        if *pods_per_replica > 1 {
            pairs.extend([
                (PODS_PER_REPLICA, pods_per_replica.to_string()),
                (REPLICA_PLACE_FILE, path(replica_place_file)),
            ]);
        }
        match program {
            WorkerProgram::Trainer {
                config_file,
                data_dir,
                sharded,
            } => {
                pairs.extend([
                    (TRAINER_CONFIG_FILE, path(config_file)),
                    (DATA_DIR, path(data_dir)),
                ]);
                pairs.extend(sharded.then(|| (SHARDED, true.to_string())));
            }
            // Without a trainer configuration, the agent knows that it runs a script.
            WorkerProgram::Joining { sharded } => {
                pairs.extend(sharded.then(|| (SHARDED, true.to_string())));
            }
            WorkerProgram::Restarting {
                peer_failure_window,
                leave_grace,
            } => pairs.extend([
                (MODE, Mode::Restart.to_string()),
                (PEER_FAILURE_WINDOW_SECONDS, seconds(peer_failure_window)),
                (GRACE_SECONDS, seconds(leave_grace)),
            ]),
        }
        pairs.extend(expected_device.map(|device| (EXPECTED_DEVICE, device.to_string())));
        let stall = stall_timeout_seconds.map(|seconds| seconds.to_string());
        pairs.extend(stall.map(|seconds| (STALL_TIMEOUT_SECONDS, seconds)));
        pairs.extend(checkpoint.iter().flat_map(CheckpointEnvironment::to_pairs));
        pairs
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::BestMetric;
    use crate::environment::{CHECKPOINT_BEST, LOCAL_RANK, LOCAL_WORLD_SIZE, LaunchEnvironment};

    fn environment(program: WorkerProgram) -> WorkerEnvironment {
        WorkerEnvironment {
            job_name: "digits".to_owned(),
            job_namespace: "ml".to_owned(),
            job_uid: "u-1".to_owned(),
            worker_index: 3,
            procs_per_worker: 2,
            pods_per_replica: 1,
            program,
            expected_device: Some(ExpectedDevice::of_gpus(2)),
            termination_grace: Duration::from_secs(60),
            stall_timeout_seconds: Some(600),
            checkpoint: Some(CheckpointEnvironment {
                dir: "/checkpoints/ml/digits".into(),
                every_steps: Some(5),
                every_seconds: None,
                keep: 3,
                best: Some(BestMetric::Top1),
                job_uid: None,
                local: None,
            }),
            address: Some("10.0.0.1".to_owned()),
            rendezvous_port: 29_500,
            membership_file: "/etc/roundhouse/membership".into(),
            replica_place_file: "/etc/roundhouse/replica".into(),
            run_dir: "/run/roundhouse".into(),
        }
    }

    #[test]
    fn worker_variables_are_unique() {
        let restarting = WorkerProgram::Restarting {
            peer_failure_window: Duration::from_secs(5),
            leave_grace: Duration::from_secs(30),
        };
        let joining = WorkerProgram::Joining { sharded: true };
        for program in [restarting, joining] {
            let pairs = environment(program).to_pairs();
            let names: BTreeMap<_, _> = pairs.iter().cloned().collect();
            assert_eq!(names.len(), pairs.len());
            assert_eq!(names[CHECKPOINT_BEST], "top1");
            assert!(!names.contains_key(TRAINER_CONFIG_FILE));
        }
    }

    #[test]
    fn environment_of_a_sharded_worker_says_so() {
        for sharded in [false, true] {
            let pairs = environment(WorkerProgram::Joining { sharded }).to_pairs();
            let found = pairs.iter().find(|(name, _)| *name == SHARDED);
            let expected = (SHARDED, "true".to_owned());
            assert_eq!(found, sharded.then_some(&expected));
        }
    }

    #[test]
    fn agent_processes_read_the_worker_environment() {
        let program = WorkerProgram::Trainer {
            config_file: "/etc/roundhouse/trainer-config".into(),
            data_dir: "/data".into(),
            sharded: false,
        };
        let worker = environment(program);
        let mut pairs: BTreeMap<_, _> = worker.to_pairs().into_iter().collect();
        pairs.insert(LOCAL_RANK, "1".to_owned());
        pairs.insert(LOCAL_WORLD_SIZE, "2".to_owned());
        let read = LaunchEnvironment::read(|name| pairs.get(name).cloned()).unwrap();
        let checkpoint = read.checkpoint.unwrap();
        assert_eq!(checkpoint.job_uid.as_deref(), Some("u-1"));
        let expected = CheckpointEnvironment {
            job_uid: Some("u-1".to_owned()),
            ..worker.checkpoint.unwrap()
        };
        assert_eq!(checkpoint, expected);
        assert_eq!(read.data_dir, PathBuf::from("/data"));
        assert_eq!(Some(read.pod_ip), worker.address);
    }
}
