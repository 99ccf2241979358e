//! Statuses of processes that do not know the agent: in restart mode the agent writes their status
//! files, with the progress that a script may report.

use std::path::Path;

use roundhouse_contract::{Membership, Phase, RankStatus, ScriptProgress, paths};

use crate::kubeflow::Reports;
use crate::options::Options;
use crate::say::say;
use crate::script_progress;

/// The statuses of all processes, as in the run directory.
pub(crate) struct Statuses {
    all: Vec<RankStatus>,
    world_size: u32,
    /// Whether the progress of each process is a posted one.
    are_posted: Vec<bool>,
    /// Progress that the processes have posted.
    reports: Reports,
    /// Whether the log has reported an unreadable progress file since the processes started.
    has_warned: bool,
}

impl Statuses {
    /// Puts all processes into the lobby: there is nothing to prepare.
    pub(crate) fn enter_lobby(options: &Options, reports: Reports) -> Self {
        let lobby = RankStatus {
            phase: Phase::Lobby,
            rank: None,
            generation: 0,
            step: 0,
            forming: 0,
            volume_moves: 0,
            patience_seconds: 0,
            progress: None,
        };
        let statuses = Self {
            all: vec![lobby; options.procs as usize],
            world_size: 0,
            are_posted: vec![false; options.procs as usize],
            reports,
            has_warned: false,
        };
        statuses.write(&options.run_dir);
        statuses
    }

    /// Resets the statuses before the processes are started for a new place.
    pub(crate) fn begin(&mut self, membership: &Membership, run_dir: &Path) {
        self.world_size = membership.world_size();
        self.has_warned = false;
        for (local_rank, status) in (0..).zip(&mut self.all) {
            for path in [
                paths::rank_progress(run_dir, local_rank),
                paths::rank_metrics(run_dir, local_rank),
                paths::rank_failure(run_dir, local_rank),
            ] {
                let _ = std::fs::remove_file(path);
            }
            *status = RankStatus {
                phase: Phase::Training,
                rank: Some(membership.rank(local_rank)),
                generation: membership.generation,
                step: status.step,
                forming: 0,
                volume_moves: 0,
                patience_seconds: 0,
                progress: None,
            };
        }
        self.write(run_dir);
    }

    /// Takes over the progress that the scripts have reported, and whether processes run. A file
    /// comes before a post, because only the script itself writes the file.
    pub(crate) fn refresh(&mut self, run_dir: &Path, are_running: bool) {
        let before = self.all.clone();
        for ((local_rank, status), is_posted) in (0..).zip(&mut self.all).zip(&mut self.are_posted)
        {
            status.phase = if are_running {
                Phase::Training
            } else {
                Phase::Lobby
            };
            let file = progress(run_dir, local_rank);
            *is_posted = file.is_none();
            match file.or_else(|| self.reports.of(local_rank).map(Ok)) {
                Some(Ok(progress)) => {
                    status.step = progress.step;
                    status.progress = Some(progress.within(status.generation, self.world_size));
                }
                Some(Err(reason)) if !std::mem::replace(&mut self.has_warned, true) => {
                    say(&format!(
                        "cannot read the progress of process {local_rank}: {}: {reason}",
                        paths::rank_progress(run_dir, local_rank).display()
                    ))
                }
                Some(Err(_)) | None => {}
            }
        }
        if self.all != before {
            self.write(run_dir);
        }
    }

    pub(crate) fn of(&self, local_rank: u32) -> Option<&RankStatus> {
        self.all.get(usize::try_from(local_rank).ok()?)
    }

    /// Returns the status for the watchdog. A process without a progress report counts as
    /// one in the lobby, and so does one whose training loop has ended by its posts: what a script
    /// does after it has no steps.
    pub(crate) fn judged(&self, local_rank: u32) -> Option<RankStatus> {
        let index = usize::try_from(local_rank).ok()?;
        let mut status = self.all.get(index)?.clone();
        let is_complete = self.are_posted[index] && self.reports.is_complete(local_rank);
        if status.progress.is_none() || is_complete {
            status.phase = Phase::Lobby;
        }
        Some(status)
    }

    fn write(&self, run_dir: &Path) {
        for (local_rank, status) in (0..).zip(&self.all) {
            let path = paths::rank_status(run_dir, local_rank);
            let partial = path.with_extension("partial");
            let text = serde_json::to_string(status).unwrap_or_default();
            let written =
                std::fs::write(&partial, text).and_then(|()| std::fs::rename(&partial, &path));
            if let Err(error) = written {
                say(&format!("{}: {error}", path.display()));
            }
        }
    }
}

/// Reads the progress that a script reports, or why it cannot be read; `None` if
/// there is no report.
fn progress(run_dir: &Path, local_rank: u32) -> Option<Result<ScriptProgress, String>> {
    let path = paths::rank_progress(run_dir, local_rank);
    match std::fs::read_to_string(path) {
        Ok(text) => Some(script_progress::read(&text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => Some(Err(error.to_string())),
    }
}
