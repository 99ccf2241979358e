//! Where the workers' small files are: a directory away from the volume of the checkpoints, as a pod has it in memory. A
//! volume that is full must not keep a process from telling that it trains.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

const PREFIX: &str = "roundhouse-workers-";
/// Is there if systemd runs the machine. When a user logs out it empties `/dev/shm` and removes `XDG_RUNTIME_DIR`, and a
/// run in tmux or under nohup continues.
const SYSTEMD: &str = "/run/systemd/system";

/// Makes the directory. `link` leads to it, so that a later run finds what a run that was killed has left.
///
/// # Errors
/// No directory can be made anywhere.
pub(super) fn make(link: &Path) -> std::io::Result<TempDir> {
    let places = places(Path::new(SYSTEMD).is_dir());
    remove_left(link, &places);
    let mut made = places.iter().map(|place| make_in(place));
    let made = made.find_map(Result::ok).map_or_else(
        || make_in(link.parent().unwrap_or_else(|| Path::new("."))),
        Ok,
    )?;
    // Some file systems have no links: then nothing of a run that is killed is found.
    let _ = std::os::unix::fs::symlink(made.path(), link);
    Ok(made)
}

/// The best one first.
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

/// Removes what an earlier run was killed beside, wherever it is. A link that someone else has made leads to nothing that
/// is removed.
fn remove_left(link: &Path, places: &[PathBuf]) {
    if let Ok(left) = std::fs::read_link(link) {
        let name = left.file_name().and_then(|name| name.to_str());
        let is_ours = name.is_some_and(|name| name.starts_with(PREFIX))
            && places.iter().any(|place| left.parent() == Some(place));
        if is_ours {
            let _ = std::fs::remove_dir_all(left);
        }
    }
    // Earlier versions had the files here.
    let _ = std::fs::remove_dir_all(link).or_else(|_| std::fs::remove_file(link));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_workers_are_not_on_the_volume_of_the_checkpoints_and_none_are_left() {
        let home = tempfile::tempdir().unwrap();
        let link = home.path().join("workers");
        let killed = make(&link).unwrap().keep();
        let parent = killed.parent().unwrap().to_owned();
        assert!(places(false).contains(&parent), "{parent:?}");
        std::fs::write(link.join("theirs"), "").unwrap();
        let next = make(&link).unwrap();
        assert!(!killed.exists());
        assert_eq!(std::fs::read_link(&link).unwrap(), next.path());
        // A directory of an earlier version gives way, and one of somebody else stays.
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
    fn no_place_is_one_that_a_logout_empties() {
        assert_eq!(places(true), [std::env::temp_dir()]);
        assert_eq!(places(false)[0], Path::new("/dev/shm"));
    }
}
