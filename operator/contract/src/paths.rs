//! Files inside a worker's pod.
//!
//! The run directory is how the processes of one worker and its agent talk: each process writes
//! its [`crate::RankStatus`] and its Prometheus text there by rename, so that a reader never sees
//! half a file and the last state outlives a SIGKILL.

use std::path::{Path, PathBuf};

/// Directory of the downward-API volume.
pub const PODINFO_DIR: &str = "/etc/roundhouse";
/// The worker's [`crate::Membership`], inside [`PODINFO_DIR`]; empty before generation 1.
pub const MEMBERSHIP_FILE: &str = "membership";
/// The job's [`crate::TrainerConfig`], inside [`PODINFO_DIR`].
pub const TRAINER_CONFIG_FILE: &str = "trainer-config";
/// Run directory: a memory volume shared by the processes of one worker.
pub const RUN_DIR: &str = "/run/roundhouse";
/// Where `trainer.data.volume` is mounted.
pub const DATA_DIR: &str = "/data";
/// Where `trainer.model.initFrom.volume` is mounted.
pub const WEIGHTS_DIR: &str = "/weights";
/// Where the agent is put for images that do not bring it.
pub const INSTALL_DIR: &str = "/roundhouse";
/// File name of the agent's program.
pub const AGENT: &str = "roundhouse-agent";
/// Where the volume for checkpoints and the ledger is mounted.
pub const CHECKPOINT_DIR: &str = "/checkpoints";
/// Directory of the ledger below that of the checkpoints.
pub const LEDGER_DIR: &str = "ledger";
/// Kubernetes' default `terminationMessagePath`.
pub const TERMINATION_LOG: &str = "/dev/termination-log";

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

/// Asks one process for a trace, as [`crate::TraceRequest`], in the run directory.
#[must_use]
pub fn rank_trace_request(run_dir: &Path, local_rank: u32) -> PathBuf {
    run_dir.join(format!("rank-{local_rank}.trace-request.json"))
}

/// Why one process ended, as [`crate::TerminationMessage`], in the run directory.
#[must_use]
pub fn rank_failure(run_dir: &Path, local_rank: u32) -> PathBuf {
    run_dir.join(format!("rank-{local_rank}.failure.json"))
}

/// What NCCL says of itself in one process, in the run directory.
#[must_use]
pub fn rank_nccl_log(run_dir: &Path, local_rank: u32) -> PathBuf {
    run_dir.join(format!("rank-{local_rank}.nccl.log"))
}

/// Where the agent serves HTTP, as `ADDRESS:PORT`, in the run directory.
#[must_use]
pub fn agent_address(run_dir: &Path) -> PathBuf {
    run_dir.join("agent.address")
}

/// Which processes the agent started anew, as [`crate::ProcessRestarts`], in the run directory.
#[must_use]
pub fn restarts(run_dir: &Path) -> PathBuf {
    run_dir.join("restarts.json")
}

/// How far a script's process is, as [`crate::ScriptProgress`], in the run directory.
#[must_use]
pub fn rank_progress(run_dir: &Path, local_rank: u32) -> PathBuf {
    run_dir.join(format!("rank-{local_rank}.progress.json"))
}
