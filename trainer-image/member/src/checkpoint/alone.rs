//! Writes a checkpoint without peers, because the process leaves and may be the only one that has
//! the state.
//!
//! Several processes with the same state may do this at the same time. A process creates the
//! directory in which it writes exclusively, so only one of them writes the bytes. The others wait;
//! if that directory stops growing, one of them takes over. Two concurrent writers do no harm: each
//! has its own directory, and the first complete one gets the name.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use roundhouse_elastic::CheckpointId;

use super::{Directory, VolumeError, load};
use crate::faults;

/// Maximum size of one part. A process that saves alone holds one part in host memory, not the
/// whole state.
pub const PART_BYTES: u64 = 256 << 20;
/// Interval between two looks at the directory of another writer.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// A writer whose directory has not grown for this long is assumed to have ended.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Number of parts in which a state of this size is written.
#[must_use]
pub fn num_parts(num_bytes: u64) -> u32 {
    u32::try_from(num_bytes.div_ceil(PART_BYTES).max(1)).unwrap_or(u32::MAX)
}

/// Creates the directory in which this process writes a checkpoint. `None`: a loadable checkpoint
/// holds this state or a newer one. Waits while another process writes this checkpoint.
///
/// # Errors
/// [`VolumeError`] if the directory cannot be created or listed.
pub fn begin(directory: &Directory, id: CheckpointId) -> Result<Option<PathBuf>, VolumeError> {
    try_begin(directory, id, LONGEST_PAUSE)
}

fn try_begin(
    directory: &Directory,
    id: CheckpointId,
    longest_pause: Duration,
) -> Result<Option<PathBuf>, VolumeError> {
    faults::volume();
    let volume_error = |error: io::Error| VolumeError::with(&directory.checkpoints())(error);
    std::fs::create_dir_all(directory.checkpoints()).map_err(volume_error)?;
    let mut attempt = 1;
    while !is_held(directory, id)? {
        let path = directory.alone(id, attempt);
        match std::fs::create_dir(&path) {
            Ok(()) => return keep_if_needed(directory, id, path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if has_stopped(directory, &path, longest_pause) {
                    attempt += 1;
                }
            }
            Err(error) => return Err(volume_error(error)),
        }
    }
    Ok(None)
}

/// A directory's name is free again once its checkpoint is complete. So a process that saw no
/// checkpoint and then created the directory may be late, and must look a second time.
fn keep_if_needed(
    directory: &Directory,
    id: CheckpointId,
    path: PathBuf,
) -> Result<Option<PathBuf>, VolumeError> {
    if is_held(directory, id)? {
        std::fs::remove_dir(&path).map_err(VolumeError::with(&path))?;
        return Ok(None);
    }
    Ok(Some(path))
}

/// Whether a loadable checkpoint holds this state or a newer one. A checkpoint that the volume
/// cannot read does not count: writing a state twice is better than losing it.
///
/// # Errors
/// [`VolumeError`] if the checkpoints cannot be listed.
pub fn is_held(directory: &Directory, id: CheckpointId) -> Result<bool, VolumeError> {
    let mut ids = directory.steady_list()?;
    loop {
        let mut newer = ids.iter().take_while(|found| **found >= id);
        if newer.any(|found| load::usable(directory, *found).is_ok()) {
            return Ok(true);
        }
        // A group that is still training may have replaced old checkpoints with new ones.
        let now = directory.steady_list()?;
        if now == ids {
            return Ok(false);
        }
        ids = now;
    }
}

/// Waits while another process writes in `path`. Returns whether that process has stopped before
/// the end; `false` means that the directory was renamed or removed.
fn has_stopped(directory: &Directory, path: &Path, longest_pause: Duration) -> bool {
    while_it_grows(directory, path, longest_pause, || true)
}

/// Waits as long as files in `path` grow and `is_incomplete`. Returns whether they have stopped
/// growing; `false` also if the directory was renamed or removed.
pub(crate) fn while_it_grows(
    directory: &Directory,
    path: &Path,
    longest_pause: Duration,
    is_incomplete: impl Fn() -> bool,
) -> bool {
    let mut found = None;
    let mut since = Instant::now();
    while is_incomplete() {
        faults::volume();
        let Ok(now) = num_bytes(path) else {
            return false;
        };
        if found.replace(now) != Some(now) {
            since = Instant::now();
            directory.io_watch().advance(1);
        }
        if since.elapsed() >= longest_pause {
            return true;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    false
}

/// Number of files in a directory and their bytes. Opens each file, because a network volume may
/// cache an old size.
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
    use super::super::{Damage, Manifest, complete, manifest, shard};
    use super::*;
    use crate::checkpoint::complete::tests::{manifest_of, write_part};

    const ID: CheckpointId = CheckpointId {
        generation: 3,
        step: 40,
    };

    fn directory() -> (tempfile::TempDir, Directory) {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::new(root.path().to_owned());
        (root, directory)
    }

    fn complete_in(
        directory: &Directory,
        path: &Path,
        id: CheckpointId,
    ) -> Result<Manifest, VolumeError> {
        write_part(path, &manifest_of(id));
        complete::complete_from(directory, path, manifest_of(id))
    }

    fn save(directory: &Directory, id: CheckpointId) {
        let path = directory.partial(id, id.generation);
        complete_in(directory, &path, id).unwrap();
    }

    #[test]
    fn one_of_many_processes_writes_their_common_state() {
        let (_root, directory) = directory();
        let begun = std::thread::scope(|scope| {
            let one = || {
                let begun = try_begin(&directory, ID, Duration::from_secs(60)).unwrap();
                if let Some(path) = &begun {
                    complete_in(&directory, path, ID).unwrap();
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
    fn directory_created_after_completion_is_removed() {
        let (_root, directory) = directory();
        save(&directory, ID);
        let late = directory.alone(ID, 1);
        std::fs::create_dir(&late).unwrap();
        assert_eq!(keep_if_needed(&directory, ID, late.clone()).unwrap(), None);
        assert!(!late.exists());
    }

    #[test]
    fn stopped_writer_is_replaced() {
        let (_root, directory) = directory();
        let first = try_begin(&directory, ID, Duration::ZERO).unwrap();
        assert_eq!(first, Some(directory.alone(ID, 1)));
        let second = try_begin(&directory, ID, Duration::from_millis(200)).unwrap();
        assert_eq!(second, Some(directory.alone(ID, 2)));
    }

    #[test]
    fn failed_writer_is_replaced() {
        let (_root, directory) = directory();
        let first = try_begin(&directory, ID, Duration::ZERO).unwrap().unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| try_begin(&directory, ID, Duration::from_secs(60)));
            std::fs::remove_dir(&first).unwrap();
            assert_eq!(second.join().unwrap().unwrap(), Some(first.clone()));
        });
    }

    #[test]
    fn state_in_a_checkpoint_is_not_written_again() {
        for (generation, step, is_held) in [(3, 39, false), (3, 40, true), (4, 7, true)] {
            let (_root, directory) = directory();
            let id = CheckpointId { generation, step };
            save(&directory, id);
            let begun = try_begin(&directory, ID, Duration::ZERO).unwrap();
            assert_eq!(begun.is_none(), is_held, "{id:?}");
        }
    }

    #[test]
    fn damaged_checkpoint_does_not_count_as_saved() {
        let later = CheckpointId {
            generation: 4,
            step: 7,
        };
        for damage in [cut_off, half_removed, read_in_vain] {
            for id in [ID, later] {
                let (_root, directory) = directory();
                save(&directory, id);
                damage(&directory, id);
                let path = try_begin(&directory, ID, Duration::ZERO).unwrap().unwrap();
                complete_in(&directory, &path, ID).unwrap();
                assert!(is_held(&directory, ID).unwrap());
                load::usable(&directory, ID).unwrap();
                let left = directory.left_over(CheckpointId {
                    generation: 9,
                    ..ID
                });
                assert_eq!(left.unwrap(), Vec::<PathBuf>::new());
            }
        }
    }

    fn cut_off(directory: &Directory, id: CheckpointId) {
        let part = directory.checkpoint(id).join(shard::file_name(0, 1));
        let file = std::fs::File::options().write(true).open(part).unwrap();
        file.set_len(9).unwrap();
    }

    fn half_removed(directory: &Directory, id: CheckpointId) {
        std::fs::remove_file(directory.checkpoint(id).join(manifest::FILE)).unwrap();
    }

    fn read_in_vain(directory: &Directory, id: CheckpointId) {
        directory.damaged().mark(id, Damage::Bytes);
    }

    #[test]
    fn whole_later_checkpoint_counts_beside_damaged_one() {
        let (_root, directory) = directory();
        for step in [41, 42] {
            save(&directory, CheckpointId { step, ..ID });
        }
        let newest = CheckpointId { step: 42, ..ID };
        directory.damaged().mark(newest, Damage::Bytes);
        assert!(is_held(&directory, ID).unwrap());
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
