//! A lock on a file, for work that only one process may do at a time. The system releases the lock
//! when its holder ends in any way.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A lock that this process holds until the value is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    /// Waits until no other process holds the lock. The file is created on demand and
    /// removed afterwards. Returns `None` if the file cannot be created, or if its file
    /// system has no locks.
    pub(crate) fn wait(path: &Path) -> Option<Self> {
        loop {
            let mut options = File::options();
            let file = options.write(true).create(true).truncate(false).open(path);
            let file = file.ok()?;
            lock(&file).ok()?;
            // The previous holder has removed the file, so a lock on it excludes no process.
            if is_at(&file, path) {
                return Some(Self {
                    path: path.to_owned(),
                    _file: file,
                });
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // The file is closed, and so unlocked, after it is removed.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn lock(file: &File) -> io::Result<()> {
    loop {
        match file.lock() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Whether a path still leads to an open file.
fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(found)) = (file.metadata(), std::fs::metadata(path)) else {
        return false;
    };
    (open.dev(), open.ino()) == (found.dev(), found.ino())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn one_process_at_a_time_holds_a_lock() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let is_held = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let _lock = Lock::wait(&path).unwrap();
                        assert!(!is_held.swap(true, Ordering::SeqCst));
                        std::thread::yield_now();
                        is_held.store(false, Ordering::SeqCst);
                    }
                });
            }
        });
        assert!(!path.exists());
    }

    /// Path of the lock, for the process that [`lock_is_free_when_its_holder_is_killed`] starts.
    const PATH: &str = "ROUNDHOUSE_TEST_LOCK";

    #[test]
    #[ignore = "another test runs it in a process of its own"]
    fn hold_a_lock_until_killed() {
        if let Some(path) = std::env::var_os(PATH) {
            let _lock = Lock::wait(Path::new(&path)).unwrap();
            println!("held");
            let _ = io::stdin().read_line(&mut String::new());
        }
    }

    #[test]
    fn lock_is_free_when_its_holder_is_killed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let mut holder = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--nocapture", "hold_a_lock_until_killed"])
            .env(PATH, &path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().ends_with("held")));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| Lock::wait(&path).is_some());
            holder.kill().unwrap();
            assert!(waiting.join().unwrap());
        });
        assert!(!path.exists());
        holder.wait().unwrap();
    }

    #[test]
    fn read_only_directory_has_no_lock() {
        assert!(Lock::wait(Path::new("/nonexistent/lock")).is_none());
    }
}
