//! Creates the directory of the workers' small files, in memory where possible, as in a pod. It is
//! not on the checkpoint volume: a full volume must not stop a process from reporting progress.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

const PREFIX: &str = "roundhouse-workers-";
/// File in the directory that its run has locked. The kernel releases the lock when the run ends,
/// even by SIGKILL.
const OWNER: &str = "owner";
/// Exists if systemd runs the machine. When a user logs out, systemd empties `/dev/shm` and removes
/// `XDG_RUNTIME_DIR`, although a run in tmux or under nohup continues.
const SYSTEMD: &str = "/run/systemd/system";

/// The directory. Dropping it removes the files.
#[derive(Debug)]
pub(super) struct WorkerFiles {
    directory: TempDir,
    /// The kernel holds the lock while the file is open.
    _owner: File,
}

impl WorkerFiles {
    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Creates the directory, and the link `link` to it. Removes the directories of killed runs.
/// Through the link, a later run also finds what an earlier version left.
///
/// # Errors
/// No candidate directory can be created.
pub(super) fn make(link: &Path) -> io::Result<WorkerFiles> {
    let places = places(Path::new(SYSTEMD).is_dir());
    remove_left(link, &places);
    for place in &places {
        remove_abandoned(place);
    }
    let mut made = places.iter().map(|place| make_in(place));
    let made = made.find_map(Result::ok).map_or_else(
        || make_in(link.parent().unwrap_or_else(|| Path::new("."))),
        Ok,
    )?;
    // Some file systems have no links.
    let _ = std::os::unix::fs::symlink(made.path(), link);
    Ok(made)
}

/// Candidate parent directories, the best one first.
fn places(has_systemd: bool) -> Vec<PathBuf> {
    let memory = (!has_systemd).then(|| PathBuf::from("/dev/shm"));
    memory.into_iter().chain([std::env::temp_dir()]).collect()
}

/// A directory with room for at least one file.
fn make_in(place: &Path) -> io::Result<WorkerFiles> {
    loop {
        let directory = tempfile::Builder::new().prefix(PREFIX).tempdir_in(place)?;
        let probe = directory.path().join("probe");
        std::fs::write(&probe, [b' '; 4 << 10])?;
        std::fs::remove_file(probe)?;
        let path = directory.path().join(OWNER);
        let owner = File::create(&path)?;
        match owner.try_lock() {
            // Another run may have removed the directory before the lock.
            Ok(()) if path.exists() => {
                return Ok(WorkerFiles {
                    directory,
                    _owner: owner,
                });
            }
            Ok(()) | Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// Removes this user's directories in `place` whose runs have ended.
fn remove_abandoned(place: &Path) {
    let user = rustix::process::geteuid().as_raw();
    for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_string_lossy().starts_with(PREFIX)
            // This does not follow a link.
            && entry.metadata().is_ok_and(|it| it.is_dir() && it.uid() == user);
        if is_ours
            && let Ok(owner) = File::open(entry.path().join(OWNER))
            && owner.try_lock().is_ok()
        {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Removes the directory that a killed run left, if the link leads to one with our prefix in a
/// candidate directory. The target of any other link stays.
fn remove_left(link: &Path, places: &[PathBuf]) {
    if let Ok(left) = std::fs::read_link(link) {
        let name = left.file_name().and_then(|name| name.to_str());
        let is_ours = name.is_some_and(|name| name.starts_with(PREFIX))
            && places.iter().any(|place| left.parent() == Some(place));
        if is_ours {
            let _ = std::fs::remove_dir_all(left);
        }
    }
    // Earlier versions had a directory here instead of a link.
    let _ = std::fs::remove_dir_all(link).or_else(|_| std::fs::remove_file(link));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_files_are_off_the_volume_and_are_removed() {
        let home = tempfile::tempdir().unwrap();
        let link = home.path().join("workers");
        // The lock stays, so that no other test removes the directory.
        let WorkerFiles { directory, _owner } = make(&link).unwrap();
        let killed = directory.keep();
        let parent = killed.parent().unwrap().to_owned();
        assert!(places(false).contains(&parent), "{parent:?}");
        std::fs::write(link.join("theirs"), "").unwrap();
        let next = make(&link).unwrap();
        assert!(!killed.exists());
        assert_eq!(std::fs::read_link(&link).unwrap(), next.path());
        // A directory of an earlier version is replaced, and the target of a foreign link stays.
        std::fs::remove_file(&link).unwrap();
        std::fs::create_dir(&link).unwrap();
        let third = make(&link).unwrap();
        assert!(third.path().is_dir() && next.path().is_dir());
        let others = tempfile::tempdir().unwrap();
        std::fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink(others.path(), &link).unwrap();
        make(&link).unwrap();
        assert!(others.path().is_dir());
    }

    #[test]
    fn only_directories_of_ended_runs_are_removed() {
        let place = tempfile::tempdir().unwrap();
        let place = place.path();
        let running = make_in(place).unwrap();
        let WorkerFiles {
            directory,
            _owner: owner,
        } = make_in(place).unwrap();
        drop(owner);
        let killed = directory.keep();
        std::fs::write(killed.join("theirs"), "").unwrap();
        let unlocked = place.join(format!("{PREFIX}starting"));
        std::fs::create_dir(&unlocked).unwrap();
        let foreign = place.join("another");
        std::fs::create_dir(&foreign).unwrap();
        File::create(foreign.join(OWNER)).unwrap();
        let link = place.join(format!("{PREFIX}link"));
        std::os::unix::fs::symlink(&foreign, &link).unwrap();
        remove_abandoned(place);
        assert!(!killed.exists());
        for kept in [running.path(), &unlocked, &foreign, &link] {
            assert!(kept.exists(), "{}", kept.display());
        }
    }

    #[test]
    fn worker_files_survive_a_logout() {
        assert_eq!(places(true), [std::env::temp_dir()]);
        assert_eq!(places(false)[0], Path::new("/dev/shm"));
    }
}
