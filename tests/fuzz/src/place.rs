//! A directory for one input, in memory where there is a place for that.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// Removed with all in it when it is dropped.
#[derive(Debug)]
pub(crate) struct Place(TempDir);

impl Place {
    /// An empty one.
    pub(crate) fn new() -> Self {
        let memory = Path::new("/dev/shm");
        let made = if memory.is_dir() {
            TempDir::new_in(memory)
        } else {
            TempDir::new()
        };
        Self(made.unwrap())
    }

    /// One that a thread keeps: to make and to remove a directory takes longer than to read a small file. Readers that keep
    /// an index meet that of the input before.
    pub(crate) fn of_thread<T>(use_it: impl FnOnce(&Self) -> T) -> T {
        thread_local!(static PLACE: Place = Place::new());
        PLACE.with(use_it)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file below it, and the directories to it.
    pub(crate) fn write(&self, name: impl AsRef<Path>, bytes: &[u8]) -> PathBuf {
        let path = self.path().join(name);
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory).unwrap();
        }
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Default for Place {
    fn default() -> Self {
        Self::new()
    }
}
