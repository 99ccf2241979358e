//! Several jobs in one directory, one after the other: a job that is deleted and applied again continues from
//! the state of the one before, and its generations begin at 1 again. So that they are newer than all of the
//! other's, each job after the first counts from a higher number.

use std::io;
use std::path::{Path, PathBuf};

use super::draft::{Draft, plain};
use super::{Directory, about};
use crate::report::say_error;

/// Generations that one job can have.
const SPAN: u64 = 1_000_000;

/// Which of the jobs in a directory a generation belongs to, from 1, and its number within that job.
#[must_use]
pub const fn run_of(generation: u64) -> (u64, u64) {
    (generation / SPAN + 1, generation % SPAN)
}

/// What is added to the generations of a job. The first process that asks settles it for all.
#[must_use]
pub fn first_generation(directory: &Directory, job_uid: Option<&str>) -> u64 {
    let Some(uid) = job_uid else { return 0 };
    let file = file(directory, uid);
    if let Some(settled) = read(&file) {
        return settled;
    }
    let first = match directory.newest_generation() {
        0 => 0,
        newest => (newest / SPAN + 1) * SPAN,
    };
    match settle(&file, first) {
        Ok(()) => read(&file).unwrap_or(first),
        Err(error) => {
            // Saving will say the same, again and again; until then nothing is lost.
            say_error(&about(&file, error));
            first
        }
    }
}

fn read(file: &Path) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.trim().parse().ok()
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
    use super::*;

    #[test]
    fn a_later_job_counts_from_above_all_that_is_there() {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::new(root.path().to_owned());
        let first = |uid| first_generation(&directory, Some(uid));
        assert_eq!(first("a"), 0);
        let ledger = |generation| {
            let name = roundhouse_elastic::ledger::file_name(generation);
            std::fs::create_dir_all(directory.ledger()).unwrap();
            std::fs::write(directory.ledger().join(name), "").unwrap();
        };
        ledger(17);
        assert_eq!(first("a"), 0);
        assert_eq!(first("b"), SPAN);
        ledger(SPAN + 3);
        assert_eq!(first("c"), 2 * SPAN);
        assert_eq!(first("b"), SPAN);
        assert_eq!(first_generation(&directory, None), 0);
    }

    #[test]
    fn processes_that_settle_it_at_once_settle_the_same() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("jobs/a");
        let settled: Vec<u64> = std::thread::scope(|scope| {
            let write = |first: u64| {
                let file = &file;
                scope.spawn(move || settle(file, first).map(|()| read(file)))
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
    fn the_first_to_settle_it_wins() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("jobs/a");
        settle(&file, 5).unwrap();
        settle(&file, 9).unwrap();
        assert_eq!(read(&file), Some(5));
    }
}
