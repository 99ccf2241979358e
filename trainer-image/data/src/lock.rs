//! Work that one process at a time does, guarded by a lock on a file. The system releases the lock when its holder
//! ends, however that ends.

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
    /// Waits until nobody else holds the lock. The file is made when needed and removed afterwards. `None`: the file
    /// cannot be made, or its file system has no locks.
    pub(crate) fn wait(path: &Path) -> Option<Self> {
        loop {
            let mut options = File::options();
            let file = options.write(true).create(true).truncate(false).open(path);
            let file = file.ok()?;
            lock(&file).ok()?;
            // The holder before has removed the file: a lock on it keeps nobody out.
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
        // The file is closed, and with that unlocked, after it is removed.
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
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn one_at_a_time_holds_a_lock() {
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

    #[test]
    fn the_lock_of_a_holder_that_died_is_free() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let held = File::create(&path).unwrap();
        held.lock().unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| Lock::wait(&path).is_some());
            // What the system does for a process that ends; the file stays.
            drop(held);
            assert!(waiting.join().unwrap());
        });
    }

    #[test]
    fn a_directory_that_cannot_be_written_has_no_lock() {
        assert!(Lock::wait(Path::new("/nonexistent/lock")).is_none());
    }
}
