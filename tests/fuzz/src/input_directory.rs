//! A temporary directory for one input, in memory if /dev/shm exists.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A directory that is removed with its files when the value is dropped.
#[derive(Debug)]
pub(crate) struct InputDirectory(TempDir);

impl InputDirectory {
    pub(crate) fn new() -> Self {
        let memory = Path::new("/dev/shm");
        let created = if memory.is_dir() {
            TempDir::new_in(memory)
        } else {
            TempDir::new()
        };
        Self(created.unwrap())
    }

    /// Uses the directory that the thread keeps, because creating and removing a directory takes
    /// longer than reading a small file. Readers that cache an index also find the index of the
    /// previous input.
    pub(crate) fn of_thread<T>(use_it: impl FnOnce(&Self) -> T) -> T {
        thread_local!(static DIRECTORY: InputDirectory = InputDirectory::new());
        DIRECTORY.with(use_it)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file below the directory, and creates the folders of its name.
    pub(crate) fn write(&self, name: impl AsRef<Path>, bytes: &[u8]) -> PathBuf {
        let path = self.path().join(name);
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory).unwrap();
        }
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Default for InputDirectory {
    fn default() -> Self {
        Self::new()
    }
}
