//! A checkpoint that one process writes without peers, because it leaves and may be the only one that has the state.
//!
//! Several processes with the same state may do this at the same time. The directory in which one writes is created
//! exclusively, so that only one of them moves the bytes. The others wait for it, and one of them takes over if nothing
//! moves there any more. Two that write at once do no harm: each has a directory of its own, and the first to be
//! complete gets the name.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use roundhouse_elastic::CheckpointId;

use super::{Directory, Trouble};
use crate::faults;

/// Most bytes of one part. A process that saves alone has one part in host memory, not the whole state.
pub const PART_BYTES: u64 = 256 << 20;
/// How often a process looks at what another one writes.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// If nothing has moved for so long, the process that wrote has ended.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// In how many parts a state of so many bytes is written.
#[must_use]
pub fn num_parts(num_bytes: u64) -> u32 {
    u32::try_from(num_bytes.div_ceil(PART_BYTES).max(1)).unwrap_or(u32::MAX)
}

/// The directory in which this process is to write a checkpoint; `None` if a complete one holds this state, or a newer
/// one. Waits for another process that writes this one.
///
/// # Errors
/// The volume does not take it.
pub fn begin(directory: &Directory, id: CheckpointId) -> Result<Option<PathBuf>, Trouble> {
    try_begin(directory, id, LONGEST_PAUSE).map_err(Trouble::with(&directory.checkpoints()))
}

fn try_begin(
    directory: &Directory,
    id: CheckpointId,
    longest_pause: Duration,
) -> io::Result<Option<PathBuf>> {
    faults::volume();
    std::fs::create_dir_all(directory.checkpoints())?;
    let mut attempt = 1;
    while !is_held(directory, id)? {
        let path = directory.alone(id, attempt);
        match std::fs::create_dir(&path) {
            Ok(()) => return keep_if_needed(directory, id, path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if stands_still(directory, &path, longest_pause) {
                    attempt += 1;
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// A directory's name is free again once its checkpoint is complete. So a process that saw no checkpoint, and then
/// created the directory, may be late. It looks a second time.
fn keep_if_needed(
    directory: &Directory,
    id: CheckpointId,
    path: PathBuf,
) -> io::Result<Option<PathBuf>> {
    if is_held(directory, id)? {
        std::fs::remove_dir(&path)?;
        return Ok(None);
    }
    Ok(Some(path))
}

/// Whether a complete checkpoint holds this state, or a newer one.
///
/// # Errors
/// The volume cannot be read.
pub fn is_held(directory: &Directory, id: CheckpointId) -> io::Result<bool> {
    let newest = directory.list()?.first().copied();
    Ok(newest.is_some_and(|newest| newest >= id))
}

/// Waits as long as another process writes there. Whether it has stopped in the middle; `false`: the directory has got
/// its name, or was removed.
fn stands_still(directory: &Directory, path: &Path, longest_pause: Duration) -> bool {
    let mut found = None;
    let mut since = Instant::now();
    loop {
        faults::volume();
        let Ok(now) = num_bytes(path) else {
            return false;
        };
        if found.replace(now) != Some(now) {
            since = Instant::now();
            directory.pulse().beat(1);
        }
        if since.elapsed() >= longest_pause {
            return true;
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

/// Files and bytes in a directory. Each file is opened: a network volume may remember its size from before.
fn num_bytes(path: &Path) -> io::Result<(usize, u64)> {
    let mut found = (0, 0);
    for entry in std::fs::read_dir(path)? {
        let opened = std::fs::File::open(entry?.path());
        let size = opened.and_then(|file| file.metadata());
        found = (found.0 + 1, found.1 + size.map_or(0, |it| it.len()));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: CheckpointId = CheckpointId {
        generation: 3,
        step: 40,
    };

    fn directory() -> (tempfile::TempDir, Directory) {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::new(root.path().to_owned());
        (root, directory)
    }

    #[test]
    fn of_many_processes_with_one_state_one_writes_and_the_others_wait_for_it() {
        let (_root, directory) = directory();
        let begun = std::thread::scope(|scope| {
            let one = || {
                let begun = try_begin(&directory, ID, Duration::from_secs(60)).unwrap();
                if let Some(path) = &begun {
                    std::fs::write(path.join("part"), "bytes").unwrap();
                    std::fs::rename(path, directory.checkpoint(ID)).unwrap();
                }
                begun.is_some()
            };
            let all: Vec<_> = (0..8).map(|_| scope.spawn(one)).collect();
            let all = all.into_iter().map(|it| it.join().unwrap());
            all.filter(|has_written| *has_written).count()
        });
        assert_eq!(begun, 1);
    }

    #[test]
    fn a_directory_that_was_created_after_the_checkpoint_was_complete_is_removed() {
        let (_root, directory) = directory();
        std::fs::create_dir_all(directory.checkpoint(ID)).unwrap();
        let late = directory.alone(ID, 1);
        std::fs::create_dir(&late).unwrap();
        assert_eq!(keep_if_needed(&directory, ID, late.clone()).unwrap(), None);
        assert!(!late.exists());
    }

    #[test]
    fn a_process_takes_over_from_one_that_has_stopped_in_the_middle() {
        let (_root, directory) = directory();
        let first = try_begin(&directory, ID, Duration::ZERO).unwrap();
        assert_eq!(first, Some(directory.alone(ID, 1)));
        let second = try_begin(&directory, ID, Duration::from_millis(200)).unwrap();
        assert_eq!(second, Some(directory.alone(ID, 2)));
    }

    #[test]
    fn a_process_tries_again_where_another_one_has_failed_and_removed_its_part() {
        let (_root, directory) = directory();
        let first = try_begin(&directory, ID, Duration::ZERO).unwrap().unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| try_begin(&directory, ID, Duration::from_secs(60)));
            std::fs::remove_dir(&first).unwrap();
            assert_eq!(second.join().unwrap().unwrap(), Some(first.clone()));
        });
    }

    #[test]
    fn a_state_that_a_checkpoint_holds_is_not_written_again() {
        let (_root, directory) = directory();
        for (generation, step, is_held) in [(3, 39, false), (3, 40, true), (4, 7, true)] {
            let id = CheckpointId { generation, step };
            std::fs::create_dir_all(directory.checkpoint(id)).unwrap();
            let begun = try_begin(&directory, ID, Duration::ZERO).unwrap();
            assert_eq!(begun.is_none(), is_held, "{id:?}");
        }
    }

    #[test]
    fn a_large_state_is_written_in_parts() {
        for (num_bytes, expected) in [
            (0, 1),
            (1, 1),
            (PART_BYTES, 1),
            (PART_BYTES + 1, 2),
            (84 << 30, 336),
        ] {
            assert_eq!(num_parts(num_bytes), expected);
        }
    }
}
