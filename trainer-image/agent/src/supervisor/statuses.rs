//! What processes that know nothing of the agent would say of themselves: in restart mode the agent
//! writes their status files, with the progress that a script may tell.

use std::path::Path;

use roundhouse_contract::{Membership, Phase, RankStatus, ScriptProgress, paths};

use crate::options::Options;
use crate::say::say;
use crate::script_progress;

/// The statuses of all processes, as they stand in the run directory.
pub(crate) struct Statuses {
    all: Vec<RankStatus>,
    world_size: u32,
    /// Whether the log says that a progress file cannot be read, since the processes started.
    has_warned: bool,
}

impl Statuses {
    /// All processes are in the lobby: there is nothing to prepare.
    pub(crate) fn enter_lobby(options: &Options) -> Self {
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
            has_warned: false,
        };
        statuses.write(&options.run_dir);
        statuses
    }

    /// The processes are about to be started for a place: what those before said is history.
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

    /// Takes over what the scripts have told since, and whether processes run.
    pub(crate) fn refresh(&mut self, run_dir: &Path, are_running: bool) {
        let before = self.all.clone();
        for (local_rank, status) in (0..).zip(&mut self.all) {
            status.phase = if are_running {
                Phase::Training
            } else {
                Phase::Lobby
            };
            match told(run_dir, local_rank) {
                Some(Ok(told)) => {
                    status.step = told.step;
                    status.progress = Some(told.within(status.generation, self.world_size));
                }
                Some(Err(reason)) if !std::mem::replace(&mut self.has_warned, true) => {
                    say(&format!(
                        "the progress of process {local_rank} is not shown: {}: {reason}",
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

    /// What the watchdog may judge: a process that has told no progress is as one in the lobby.
    pub(crate) fn judged(&self, local_rank: u32) -> Option<RankStatus> {
        let mut status = self.of(local_rank)?.clone();
        if status.progress.is_none() {
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

/// What a script tells, or why that cannot be read; `None` if it tells nothing.
fn told(run_dir: &Path, local_rank: u32) -> Option<Result<ScriptProgress, String>> {
    let path = paths::rank_progress(run_dir, local_rank);
    match std::fs::read_to_string(path) {
        Ok(text) => Some(script_progress::read(&text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => Some(Err(error.to_string())),
    }
}
