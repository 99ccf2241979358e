//! Numbers the generations of consecutive jobs in one directory. A job that is deleted and created
//! again continues from the state of the previous job, and its generations start at 1 again. So
//! each job after the first adds an offset, which makes its generations newer than all earlier
//! ones.

use std::io;
use std::path::{Path, PathBuf};

use roundhouse_elastic::ledger::file_name;
use roundhouse_report::say_error;

use super::draft::{Draft, plain};
use super::error::{is_absence, steadily};
use super::{Directory, Reason, VolumeError, about};

/// Maximum number of generations of one job.
const SPAN: u64 = 1_000_000;
/// Exclusive upper bound of a generation: JSON readers hold integers up to it exactly.
const MAX: u64 = 1 << 53;

/// Splits a generation into the number of its job in the directory, from 1, and its number within
/// that job.
#[must_use]
pub const fn run_of(generation: u64) -> (u64, u64) {
    (generation / SPAN + 1, generation % SPAN)
}

/// Returns the offset of a job's generations. The first process that asks stores it for all.
///
/// # Errors
/// [`VolumeError`] if the volume cannot be read. A number that is too low would be stored
/// permanently.
pub fn first_generation(directory: &Directory, job_uid: Option<&str>) -> Result<u64, VolumeError> {
    let Some(uid) = job_uid else { return Ok(0) };
    let file = file(directory, uid);
    if let Some(settled) = read(&file)? {
        return Ok(settled);
    }
    let first = match newest_generation(directory)? {
        0 => 0,
        newest => (newest / SPAN + 1) * SPAN,
    };
    match settle(&file, first) {
        Ok(()) => Ok(read(&file)?.unwrap_or(first)),
        Err(error) => {
            // Each save will report the same error; nothing is lost until then.
            say_error(&about(&file, error));
            Ok(first)
        }
    }
}

/// Finds the newest generation that has written here; 0 if none has.
///
/// # Errors
/// [`VolumeError`] if the volume cannot be read, or if no job can have the generation that it
/// finds.
pub(crate) fn newest_generation(directory: &Directory) -> Result<u64, VolumeError> {
    let newest = steadily(|| directory.newest_generation())?;
    if newest < MAX - SPAN {
        return Ok(newest);
    }
    let path = path_of(directory, newest)?;
    Err(VolumeError::with(&path)(Reason::NoGeneration))
}

/// Finds the checkpoint or ledger with this generation in its name.
fn path_of(directory: &Directory, generation: u64) -> Result<PathBuf, VolumeError> {
    let ids = directory.steady_list()?;
    let id = ids.into_iter().find(|id| id.generation == generation);
    Ok(id.map_or_else(
        || directory.ledger().join(file_name(generation)),
        |id| directory.checkpoint(id),
    ))
}

/// Reads the number in a file; `None` if there is no file.
fn read(file: &Path) -> Result<Option<u64>, VolumeError> {
    steadily(|| match std::fs::read_to_string(file) {
        Ok(text) => number(&text).map(Some).map_err(VolumeError::with(file)),
        Err(error) if is_absence(&error) => Ok(None),
        Err(error) => Err(VolumeError::with(file)(error)),
    })
}

/// Parses a complete line. A file system without a better way to name a file may show its beginning
/// before its end.
fn number(text: &str) -> Result<u64, Reason> {
    let line = text.strip_suffix('\n').ok_or(Reason::NoWholeLine)?;
    line.parse().map_err(|_| Reason::NoNumber)
}

/// Writes the number, unless another process has written one.
fn settle(file: &Path, first: u64) -> io::Result<()> {
    let folder = file.parent().unwrap_or(file);
    let draft = Draft::write(folder, &format!("{first}\n"))?;
    match draft.publish(file) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

fn file(directory: &Directory, uid: &str) -> PathBuf {
    directory.root().join("jobs").join(plain(uid))
}

#[cfg(test)]
mod tests {
    use roundhouse_elastic::CheckpointId;

    use super::*;

    #[test]
    fn later_job_counts_above_all_existing_generations() {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::new(root.path().to_owned());
        let first = |uid| first_generation(&directory, Some(uid)).unwrap();
        assert_eq!(first("a"), 0);
        let ledger = |generation| {
            let name = file_name(generation);
            std::fs::create_dir_all(directory.ledger()).unwrap();
            std::fs::write(directory.ledger().join(name), "").unwrap();
        };
        ledger(17);
        assert_eq!(first("a"), 0);
        assert_eq!(first("b"), SPAN);
        ledger(SPAN + 3);
        assert_eq!(first("c"), 2 * SPAN);
        assert_eq!(first("b"), SPAN);
        assert_eq!(first_generation(&directory, None).unwrap(), 0);
    }

    #[test]
    fn impossible_generation_is_refused_with_its_path() {
        for generation in [u64::MAX, u64::MAX / SPAN * SPAN - 1, MAX] {
            let root = tempfile::tempdir().unwrap();
            let directory = Directory::new(root.path().to_owned());
            let name = file_name(generation);
            let ledger = directory.ledger().join(name);
            let id = CheckpointId {
                generation,
                step: 1,
            };
            let checkpoint = directory.checkpoint(id);
            for path in [ledger, checkpoint] {
                std::fs::create_dir_all(&path).unwrap();
                let volume_error = first_generation(&directory, Some("a")).unwrap_err();
                assert_eq!(volume_error.path, path);
                let words = volume_error.to_string();
                assert!(words.contains("move it away"), "{words}");
                // A process that trains alone continues from that generation.
                newest_generation(&directory).unwrap_err();
                std::fs::remove_dir(path).unwrap();
                assert!(!file(&directory, "a").exists());
            }
            assert_eq!(first_generation(&directory, Some("b")).unwrap(), 0);
        }
    }

    #[test]
    fn unreadable_volume_is_not_empty() {
        let root = tempfile::tempdir().unwrap();
        let unreadable = root.path().join("x".repeat(300));
        let directory = Directory::new(unreadable);
        directory.newest_generation().unwrap_err();
        first_generation(&directory, Some("a")).unwrap_err();
    }

    #[test]
    fn partial_job_number_is_waited_for() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("a");
        std::fs::write(&file, "1").unwrap();
        std::thread::scope(|scope| {
            let read = scope.spawn(|| read(&file).unwrap());
            std::fs::write(&file, "1000000\n").unwrap();
            assert_eq!(read.join().unwrap(), Some(SPAN));
        });
        for text in ["", "x\n"] {
            assert!(number(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn concurrent_processes_agree_on_job_number() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("jobs/a");
        let settled: Vec<u64> = std::thread::scope(|scope| {
            let write = |first: u64| {
                let file = &file;
                scope.spawn(move || settle(file, first).map(|()| read(file).unwrap()))
            };
            let all: Vec<_> = (0..8).map(write).collect();
            let all = all.into_iter();
            all.map(|it| it.join().unwrap().unwrap().unwrap()).collect()
        });
        assert!(settled.iter().all(|it| *it == settled[0]), "{settled:?}");
        let left = std::fs::read_dir(root.path().join("jobs")).unwrap();
        assert_eq!(left.count(), 1, "no draft stays");
    }

    #[test]
    fn first_job_number_wins() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("jobs/a");
        settle(&file, 5).unwrap();
        settle(&file, 9).unwrap();
        assert_eq!(read(&file).unwrap(), Some(5));
    }
}
