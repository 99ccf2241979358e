//! Files inside a worker's pod.
//!
//! The processes of one worker and its agent communicate through the run directory: each process
//! writes its [`crate::RankStatus`] and its Prometheus text there by rename. So a reader never sees
//! half a file, and the last state survives a SIGKILL.

use std::path::{Path, PathBuf};

/// Directory of the downward-API volume.
pub const PODINFO_DIR: &str = "/etc/roundhouse";
/// The worker's [`crate::Membership`], inside [`PODINFO_DIR`]; empty before generation 1.
pub const MEMBERSHIP_FILE: &str = "membership";
/// The pod's [`crate::ReplicaPlace`], inside [`PODINFO_DIR`], in jobs with replicas of several
/// pods; empty before the first life.
pub const REPLICA_PLACE_FILE: &str = "replica";
/// The pod's [`crate::CopyPair`], inside [`PODINFO_DIR`], in jobs of workers of one pod with
/// `checkpoint.local.peerCopies`; empty while the pod is in no pair.
pub const COPY_PAIR_FILE: &str = "copy-pair";
/// The job's [`crate::TrainerConfig`], inside [`PODINFO_DIR`].
pub const TRAINER_CONFIG_FILE: &str = "trainer-config";
/// Run directory: a memory volume shared by the processes of one worker.
pub const RUN_DIR: &str = "/run/roundhouse";
/// Mount path of `trainer.data.volume`.
pub const DATA_DIR: &str = "/data";
/// Mount path of `trainer.model.initFrom.volume`.
pub const WEIGHTS_DIR: &str = "/weights";
/// Directory of the agent in images that do not contain it.
pub const INSTALL_DIR: &str = "/roundhouse";
/// File name of the agent's program.
pub const AGENT: &str = "roundhouse-agent";
/// Mount path of the volume for checkpoints and the ledger.
pub const CHECKPOINT_DIR: &str = "/checkpoints";
/// Directory of the pod for local copies of the state.
pub const COPIES_DIR: &str = "/run/roundhouse-copies";
/// Directory of the ledger, below the directory of the checkpoints.
pub const LEDGER_DIR: &str = "ledger";
/// Name of the file with which the processes of a replica find each other, in the directory of its
/// life.
pub const REPLICA_FILE: &str = "store";
/// Default `terminationMessagePath` of Kubernetes.
pub const TERMINATION_LOG: &str = "/dev/termination-log";

/// File that the agent creates in the directory of a life when that life is over. The processes of
/// the life then stop waiting for others. `replica_file`: the one with which they find each other.
#[must_use]
pub fn end_of_life(replica_file: &Path) -> PathBuf {
    replica_file.with_file_name("over")
}

/// Status of one process in the run directory.
#[must_use]
pub fn rank_status(run_dir: &Path, local_rank: u32) -> PathBuf {
    run_dir.join(format!("rank-{local_rank}.json"))
}

/// Prometheus text of one process in the run directory.
#[must_use]
pub fn rank_metrics(run_dir: &Path, local_rank: u32) -> PathBuf {
    run_dir.join(format!("rank-{local_rank}.prom"))
}

/// Request for a trace of one process, as [`crate::TraceRequest`], in the run directory.
#[must_use]
pub fn rank_trace_request(run_dir: &Path, local_rank: u32) -> PathBuf {
    run_dir.join(format!("rank-{local_rank}.trace-request.json"))
}

/// Termination message of one process, as [`crate::TerminationMessage`], in the run directory.
#[must_use]
pub fn rank_failure(run_dir: &Path, local_rank: u32) -> PathBuf {
    run_dir.join(format!("rank-{local_rank}.failure.json"))
}

/// Log of NCCL in one process, in the run directory.
#[must_use]
pub fn rank_nccl_log(run_dir: &Path, local_rank: u32) -> PathBuf {
    run_dir.join(format!("rank-{local_rank}.nccl.log"))
}

/// Address of the agent's HTTP server, as `ADDRESS:PORT`, in the run directory.
#[must_use]
pub fn agent_address(run_dir: &Path) -> PathBuf {
    run_dir.join("agent.address")
}

/// Processes that the agent restarted, as [`crate::ProcessRestarts`], in the run directory.
#[must_use]
pub fn restarts(run_dir: &Path) -> PathBuf {
    run_dir.join("restarts.json")
}

/// Directory of one life of a sharded worker's replica, in the run directory; `life` is unique
/// there.
#[must_use]
pub fn replica(run_dir: &Path, life: &str) -> PathBuf {
    run_dir.join(format!("replica-{life}"))
}

/// Progress of a script's process, as [`crate::ScriptProgress`], in the run directory.
#[must_use]
pub fn rank_progress(run_dir: &Path, local_rank: u32) -> PathBuf {
    run_dir.join(format!("rank-{local_rank}.progress.json"))
}

/// Token with which a script's process posts its progress, in the run directory.
#[must_use]
pub fn rank_progress_token(run_dir: &Path, local_rank: u32) -> PathBuf {
    run_dir.join(format!("rank-{local_rank}.progress-token"))
}
