//! The files of the run directory, in which processes report. A missing or unreadable file counts
//! as no report.

use std::path::Path;

use roundhouse_contract::{ProcessRestarts, RankStatus, TerminationMessage, paths};

/// Reads the last status of a process.
#[must_use]
pub fn status(run_dir: &Path, local_rank: u32) -> Option<RankStatus> {
    read(&paths::rank_status(run_dir, local_rank)).and_then(|text| serde_json::from_str(&text).ok())
}

/// Reads the reason that a process gives for its end.
#[must_use]
pub fn failure(run_dir: &Path, local_rank: u32) -> Option<TerminationMessage> {
    read(&paths::rank_failure(run_dir, local_rank))
        .and_then(|text| TerminationMessage::parse(&text))
}

/// Reads the Prometheus text of a process.
#[must_use]
pub fn metrics(run_dir: &Path, local_rank: u32) -> Option<String> {
    read(&paths::rank_metrics(run_dir, local_rank))
}

/// Removes the reports of processes of an earlier container.
///
/// # Errors
/// Returns an error if the directory cannot be created.
pub fn prepare(run_dir: &Path, procs: u32) -> std::io::Result<()> {
    std::fs::create_dir_all(run_dir)?;
    let _ = std::fs::remove_file(paths::restarts(run_dir));
    for local_rank in 0..procs {
        forget(run_dir, local_rank);
    }
    Ok(())
}

/// Removes the reports of a process that will be restarted.
pub fn forget(run_dir: &Path, local_rank: u32) {
    for path in [
        paths::rank_status(run_dir, local_rank),
        paths::rank_metrics(run_dir, local_rank),
        paths::rank_failure(run_dir, local_rank),
        paths::rank_trace_request(run_dir, local_rank),
        paths::rank_nccl_log(run_dir, local_rank),
        paths::rank_progress_token(run_dir, local_rank),
    ] {
        let _ = std::fs::remove_file(path);
    }
}

/// Returns the record of restarts, and what the processes show now.
#[must_use]
pub fn restarts(run_dir: &Path, procs: u32) -> ProcessRestarts {
    let record = read(&paths::restarts(run_dir)).and_then(|text| serde_json::from_str(&text).ok());
    let record: ProcessRestarts = record.unwrap_or_default();
    let statuses: Vec<_> = (0..procs).map(|rank| status(run_dir, rank)).collect();
    record.with_statuses(&statuses)
}

/// Writes the record of restarts into a file, atomically.
///
/// # Errors
/// Returns an error if the run directory cannot be written.
pub fn keep_restarts(run_dir: &Path, restarts: &ProcessRestarts) -> std::io::Result<()> {
    let path = paths::restarts(run_dir);
    let partial = path.with_extension("partial");
    std::fs::write(&partial, serde_json::to_string(restarts)?)?;
    std::fs::rename(partial, path)
}

/// Returns the local ranks that are not ready to train; empty if all are ready.
#[must_use]
pub fn not_ready(run_dir: &Path, procs: u32) -> Vec<u32> {
    let restarts = restarts(run_dir, procs);
    let ready = |rank: &u32| status(run_dir, *rank).is_some_and(|it| restarts.is_ready(&it));
    (0..procs).filter(|rank| !ready(rank)).collect()
}

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(path).ok()
}
