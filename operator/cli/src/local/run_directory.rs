//! The directory of a run: a lock gives it to one run at a time, and the end of the run decides
//! what stays in it.

use std::fs::{File, TryLockError};
use std::io::{Read, Write};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, bail, ensure};
use jiff::Timestamp;
use roundhouse_elastic::CheckpointId;
use tempfile::TempDir;

use super::launch_plan::state;
use super::memory::{self, WorkerFiles};
use crate::view::span::ago;

/// Lock file with the pid of the run; the run holds the lock while it is in the directory.
pub(super) const LOCK: &str = "lock";

/// Link to the workers' files while a run is in the directory.
const WORKERS: &str = "workers";

#[derive(Debug)]
pub(super) struct RunDirectory {
    path: PathBuf,
    /// A directory without `--dir`; dropping it removes the directory.
    temporary: Option<TempDir>,
    /// The small files of the workers; dropping it removes them.
    workers: WorkerFiles,
    /// Committed steps of the newest checkpoint of an earlier run.
    found: Option<u64>,
    /// The kernel holds the lock while the file is open.
    _lock: File,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Succeeded,
    /// The script has ended before the last of its `total` steps.
    Stopped {
        total: u64,
    },
    Failed,
    Interrupted,
    /// The user interrupted the run while a worker kept failing.
    GivenUp,
}

/// The user's directory as an absolute path without `..`, as `spec.checkpoint` requires. The
/// directory need not exist.
///
/// # Errors
/// The path is empty, or the current directory does not exist.
pub(super) fn locate(given: &Path) -> anyhow::Result<PathBuf> {
    let mut path = PathBuf::new();
    for component in std::path::absolute(given).context("--dir")?.components() {
        match component {
            Component::ParentDir => {
                path.pop();
            }
            other => path.push(other),
        }
    }
    Ok(path)
}

impl RunDirectory {
    /// The user's directory (from [`locate`]), or a temporary directory that stays only if the run
    /// fails.
    ///
    /// # Errors
    /// The directory cannot be created, or another run holds its lock.
    pub(super) fn make(given: Option<&Path>) -> anyhow::Result<Self> {
        let (path, temporary) = if let Some(given) = given {
            (given.to_owned(), None)
        } else {
            let made = tempfile::Builder::new().prefix("roundhouse-").tempdir()?;
            (made.path().to_owned(), Some(made))
        };
        ensure!(
            !path.is_file(),
            "--dir: {} is a file, not a directory",
            path.display()
        );
        let cannot = |what: &Path| format!("cannot create {}; give another --dir", what.display());
        std::fs::create_dir_all(&path).with_context(|| cannot(&path))?;
        let lock = lock(&path)?;
        let logs = path.join("logs");
        std::fs::create_dir_all(&logs).with_context(|| cannot(&logs))?;
        // A new directory, because membership files of an earlier run must not reach this run's
        // workers.
        let workers =
            memory::make(&path.join(WORKERS)).context("cannot create a directory for workers")?;
        Ok(Self {
            found: saved_step(&state(&path)),
            path,
            temporary,
            workers,
            _lock: lock,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn workers(&self) -> &Path {
        self.workers.path()
    }

    pub(super) fn logs(&self) -> PathBuf {
        self.path.join("logs")
    }

    /// The sentence for a run that continues an earlier one: step, age and directory of the
    /// checkpoint.
    pub(super) fn resumes(&self) -> Option<String> {
        let (step, state) = (self.found?, state(&self.path));
        let changed = std::fs::metadata(state.join("checkpoints"));
        let saved_at = changed.and_then(|it| it.modified()).ok();
        let age = saved_at.and_then(|at| Timestamp::try_from(at).ok());
        let age = age.map_or_else(String::new, |at| {
            format!(", saved {} ago", ago(at, Timestamp::now()))
        });
        Some(format!(
            "continues from step {step} of an earlier run{age}, in {}",
            state.display()
        ))
    }

    /// Cleans up, and returns the last message to the user. Of a temporary directory only the logs
    /// stay, and only after a failure.
    pub(super) fn close(self, outcome: Outcome) -> String {
        let logs = self.logs();
        let _ = std::fs::remove_file(self.path.join(WORKERS));
        let Some(temporary) = self.temporary else {
            return farewell(&self.path, outcome, self.found);
        };
        if !matches!(outcome, Outcome::Failed | Outcome::GivenUp) {
            return "checkpoints, results and logs were not kept; --dir DIR keeps them".to_owned();
        }
        clear_but(&temporary.keep(), &logs);
        format!("logs that explain it: {}", logs.display())
    }
}

/// Removes the entries of a directory except `kept`; ignores errors.
fn clear_but(directory: &Path, kept: &Path) {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()).filter(|it| it != kept) {
        let _ = std::fs::remove_dir_all(&path).or_else(|_| std::fs::remove_file(&path));
    }
}

fn farewell(dir: &Path, outcome: Outcome, found: Option<u64>) -> String {
    let (logs, state) = (dir.join("logs"), state(dir));
    let Some(step) = saved_step(&state) else {
        return format!("logs: {}; no step is saved yet", logs.display());
    };
    if let Outcome::Stopped { total } = outcome {
        return format!(
            "the training stopped itself at step {step} of {total}, which is saved in {}; the same command does not \
             continue it: a longer training needs another --dir",
            state.display()
        );
    }
    if outcome == Outcome::Succeeded && found == Some(step) {
        return format!(
            "no step was left to train: an earlier run had trained all {step} steps, and its state is in {}; give more epochs or \
             steps, another --dir, or delete that directory",
            state.display()
        );
    }
    let next = match outcome {
        Outcome::Succeeded | Outcome::Stopped { .. } => {
            "with more epochs or steps to train, the same command continues"
        }
        Outcome::Failed | Outcome::GivenUp => {
            "once the cause is corrected, the same command continues"
        }
        Outcome::Interrupted => "the same command continues",
    };
    let (logs, state) = (logs.display(), state.display());
    format!("step {step} is saved in {state}; {next} from there; logs: {logs}")
}

/// Committed steps of the newest complete checkpoint.
fn saved_step(state: &Path) -> Option<u64> {
    let entries = std::fs::read_dir(state.join("checkpoints")).ok()?;
    let names = entries.flatten().map(|entry| entry.file_name());
    let ids = names.filter_map(|name| CheckpointId::parse(name.to_str()?));
    ids.max().map(|id| id.step)
}

/// Locks a directory for this process. The kernel releases the lock when the process ends, even by
/// SIGKILL.
fn lock(directory: &Path) -> anyhow::Result<File> {
    let path = directory.join(LOCK);
    let named = || path.display().to_string();
    let mut file = File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(&path)
        .with_context(named)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let _ = file.read_to_string(&mut holder);
            bail!(
                "--dir: another run (pid {}) uses {}; end it first, or give another directory",
                holder.trim(),
                directory.display()
            );
        }
        Err(TryLockError::Error(error)) => return Err(error).with_context(named),
    }
    file.set_len(0).with_context(named)?;
    writeln!(file, "{}", std::process::id()).with_context(named)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_is_made_absolute_without_parent_steps() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(
            locate(Path::new("../x")).unwrap(),
            here.parent().unwrap().join("x")
        );
        assert_eq!(
            locate(Path::new("/a/../../b/./c")).unwrap(),
            Path::new("/b/c")
        );
        assert!(locate(Path::new("")).is_err());
    }

    #[test]
    fn directory_has_one_run_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let first = RunDirectory::make(Some(directory.path())).unwrap();
        std::fs::write(first.path().join("workers/theirs"), "").unwrap();
        let refused = RunDirectory::make(Some(directory.path()))
            .unwrap_err()
            .to_string();
        let pid = std::process::id();
        assert!(refused.contains(&format!("(pid {pid})")), "{refused}");
        assert!(first.path().join("workers/theirs").exists(), "untouched");
        drop(first);
        let second = RunDirectory::make(Some(directory.path())).unwrap();
        assert!(!second.path().join("workers/theirs").exists());
    }

    #[test]
    fn temporary_directory_stays_only_after_a_failure() {
        for (outcome, is_kept) in [
            (Outcome::Succeeded, false),
            (Outcome::Interrupted, false),
            (Outcome::Stopped { total: 9 }, false),
            (Outcome::Failed, true),
            (Outcome::GivenUp, true),
        ] {
            let run = RunDirectory::make(None).unwrap();
            let (path, logs) = (run.path().to_owned(), run.logs());
            let message = run.close(outcome);
            assert_eq!(path.exists(), is_kept);
            assert_eq!(message.contains(&logs.display().to_string()), is_kept);
            assert_eq!(message.contains("--dir DIR keeps them"), !is_kept);
            let left = std::fs::read_dir(&path).into_iter().flatten().flatten();
            let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
            assert!(left.iter().all(|name| name == "logs"), "{left:?}");
            let _ = std::fs::remove_dir_all(path);
        }
        let path = {
            let run = RunDirectory::make(None).unwrap();
            run.path().to_owned()
        };
        assert!(!path.exists(), "a run that never began leaves nothing");
    }

    #[test]
    fn end_of_run_names_the_saved_step_and_directory() {
        let directory = tempfile::tempdir().unwrap();
        let checkpoints = directory.path().join("state/checkpoints");
        let close = |outcome| {
            let run = RunDirectory::make(Some(directory.path())).unwrap();
            run.close(outcome)
        };
        assert!(close(Outcome::Interrupted).contains("no step is saved yet"));
        for (generation, step) in [(1, 900), (1_000_001, 480)] {
            let id = CheckpointId { generation, step };
            std::fs::create_dir_all(checkpoints.join(id.name())).unwrap();
        }
        let id = CheckpointId {
            generation: 1_000_002,
            step: 500,
        };
        std::fs::create_dir(checkpoints.join(id.partial_name(1))).unwrap();
        let message = close(Outcome::Interrupted);
        let state = directory.path().join("state");
        let saved = format!("step 480 is saved in {}", state.display());
        assert!(message.starts_with(&saved), "{message}");
        // Each later run finds the checkpoint of step 480 and trains no further step.
        let run = RunDirectory::make(Some(directory.path())).unwrap();
        let words = run.resumes().unwrap();
        assert!(
            words.starts_with("continues from step 480 of an earlier run, saved "),
            "{words}"
        );
        drop(run);
        assert!(close(Outcome::Succeeded).starts_with("no step was left to train"));
        let run = RunDirectory::make(Some(directory.path())).unwrap();
        let later = CheckpointId {
            generation: 1_000_003,
            step: 490,
        };
        std::fs::create_dir(checkpoints.join(later.name())).unwrap();
        assert!(run.close(Outcome::Succeeded).contains("more epochs"));
        let words = close(Outcome::Stopped { total: 700 });
        assert!(words.contains("at step 490 of 700"), "{words}");
        assert!(words.contains("needs another --dir"), "{words}");
        assert!(directory.path().join("logs").exists());
    }
}
