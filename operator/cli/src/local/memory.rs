//! Creates the directory of the workers' small files, in memory where possible, as in a pod. It is
//! not on the checkpoint volume: a full volume must not stop a process from reporting progress.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

const PREFIX: &str = "roundhouse-workers-";
/// Exists if systemd runs the machine. When a user logs out, systemd empties `/dev/shm` and removes
/// `XDG_RUNTIME_DIR`, although a run in tmux or under nohup continues.
const SYSTEMD: &str = "/run/systemd/system";

/// Creates the directory, and the link `link` to it. Through the link, a later run finds and
/// removes what a killed run left.
///
/// # Errors
/// No candidate directory can be created.
pub(super) fn make(link: &Path) -> std::io::Result<TempDir> {
    let places = places(Path::new(SYSTEMD).is_dir());
    remove_left(link, &places);
    let mut made = places.iter().map(|place| make_in(place));
    let made = made.find_map(Result::ok).map_or_else(
        || make_in(link.parent().unwrap_or_else(|| Path::new("."))),
        Ok,
    )?;
    // Some file systems have no links. The files of a killed run then stay.
    let _ = std::os::unix::fs::symlink(made.path(), link);
    Ok(made)
}

/// Candidate parent directories, the best one first.
fn places(has_systemd: bool) -> Vec<PathBuf> {
    let memory = (!has_systemd).then(|| PathBuf::from("/dev/shm"));
    memory.into_iter().chain([std::env::temp_dir()]).collect()
}

/// A directory with room for at least one file.
fn make_in(place: &Path) -> std::io::Result<TempDir> {
    let made = tempfile::Builder::new().prefix(PREFIX).tempdir_in(place)?;
    let probe = made.path().join("probe");
    std::fs::write(&probe, [b' '; 4 << 10])?;
    std::fs::remove_file(probe)?;
    Ok(made)
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
        let killed = make(&link).unwrap().keep();
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
    fn worker_files_survive_a_logout() {
        assert_eq!(places(true), [std::env::temp_dir()]);
        assert_eq!(places(false)[0], Path::new("/dev/shm"));
    }
}
