//! Paths in the directory that all workers share, and listings of it.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use roundhouse_contract::paths;
use roundhouse_elastic::state::Names;
use roundhouse_elastic::{CheckpointId, ledger};

use super::damaged::Damaged;
use super::error::{VolumeError, steadily};
use super::io_watch::IoWatch;

/// The shared directory, with its I/O progress and its damaged checkpoints. Clones share both.
#[derive(Clone, Debug)]
pub struct Directory {
    root: PathBuf,
    io_watch: IoWatch,
    damaged: Damaged,
}

impl Directory {
    /// Uses `root`, which need not exist yet.
    #[must_use]
    pub fn new(root: PathBuf) -> Self {
        Self {
            root,
            io_watch: IoWatch::default(),
            damaged: Damaged::default(),
        }
    }

    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    #[must_use]
    pub const fn io_watch(&self) -> &IoWatch {
        &self.io_watch
    }

    #[must_use]
    pub const fn damaged(&self) -> &Damaged {
        &self.damaged
    }

    #[must_use]
    pub fn checkpoints(&self) -> PathBuf {
        self.root.join("checkpoints")
    }

    #[must_use]
    pub fn ledger(&self) -> PathBuf {
        self.root.join(paths::LEDGER_DIR)
    }

    /// Path of a complete checkpoint.
    #[must_use]
    pub fn checkpoint(&self, id: CheckpointId) -> PathBuf {
        self.checkpoints().join(id.name())
    }

    /// Path of an incomplete checkpoint that generation `writer` writes.
    #[must_use]
    pub fn partial(&self, id: CheckpointId, writer: u64) -> PathBuf {
        self.checkpoints().join(id.partial_name(writer))
    }

    /// Path in which one process writes a whole checkpoint; see [`CheckpointId::alone_name`].
    #[must_use]
    pub fn alone(&self, id: CheckpointId, attempt: u32) -> PathBuf {
        self.checkpoints().join(id.alone_name(attempt))
    }

    /// Path of a damaged checkpoint while the same state replaces it.
    #[must_use]
    pub fn replaced(&self, id: CheckpointId) -> PathBuf {
        self.checkpoints().join(id.damaged_name())
    }

    /// Lists the complete checkpoints, newest first.
    ///
    /// # Errors
    /// The error of the operating system if the directory exists and cannot be read.
    pub fn list(&self) -> io::Result<Vec<CheckpointId>> {
        let mut ids = parsed(&self.checkpoints(), CheckpointId::parse)?;
        ids.sort_unstable_by(|left, right| right.cmp(left));
        Ok(ids)
    }

    /// Like [`Self::list`], but retries temporary errors of the volume.
    ///
    /// # Errors
    /// The error of the operating system if the directory exists and cannot be read.
    pub fn steady_list(&self) -> Result<Vec<CheckpointId>, VolumeError> {
        steadily(|| self.list().map_err(VolumeError::with(&self.checkpoints())))
    }

    /// Lists the paths of incomplete checkpoints of older generations or older steps than `id`.
    ///
    /// # Errors
    /// The error of the operating system if the directory exists and cannot be read.
    pub fn left_over(&self, id: CheckpointId) -> io::Result<Vec<PathBuf>> {
        let older = |name: &str| {
            let found = CheckpointId::parse_partial(name)?;
            (found < id).then(|| self.checkpoints().join(name))
        };
        parsed(&self.checkpoints(), older)
    }

    /// Lists the generations that have a ledger, in ascending order.
    ///
    /// # Errors
    /// The error of the operating system if the directory exists and cannot be read.
    pub fn ledgers(&self) -> io::Result<Vec<u64>> {
        let mut generations = parsed(&self.ledger(), ledger::parse_file_name)?;
        generations.sort_unstable();
        Ok(generations)
    }

    /// Finds the newest checkpoint that is not known to be damaged, and the newest generation that
    /// has written here.
    ///
    /// # Errors
    /// [`VolumeError`] if a directory exists and cannot be read. A process that took it for empty
    /// would start a second training beside the first.
    pub fn names(&self) -> Result<Names, VolumeError> {
        let checkpoints = self
            .list()
            .map_err(VolumeError::with(&self.checkpoints()))?;
        let ledgers = self.ledgers().map_err(VolumeError::with(&self.ledger()))?;
        let written = checkpoints.iter().map(|id| id.generation).chain(ledgers);
        Ok(Names {
            generation: written.max().unwrap_or(0),
            checkpoint: checkpoints
                .into_iter()
                .find(|id| self.damaged.of(*id).is_none()),
        })
    }

    /// Finds the newest generation that has written here; 0 if none has.
    ///
    /// # Errors
    /// Those of [`Directory::names`].
    pub fn newest_generation(&self) -> Result<u64, VolumeError> {
        self.names().map(|names| names.generation)
    }
}

pub(crate) fn parsed<T>(directory: &Path, parse: impl Fn(&str) -> Option<T>) -> io::Result<Vec<T>> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        // A path that is not a directory contains nothing. Writing to it will report the reason.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(Vec::new());
        }
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        found.extend(entry?.file_name().to_str().and_then(&parse));
    }
    Ok(found)
}

/// Makes the names in a directory durable.
pub(crate) fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complete_and_partial_checkpoints_are_separate_and_ordered() {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::new(root.path().to_owned());
        assert_eq!(directory.list().unwrap(), []);
        assert_eq!(directory.newest_generation().unwrap(), 0);
        let id = |generation, step| CheckpointId { generation, step };
        for id in [id(1, 30), id(2, 20)] {
            std::fs::create_dir_all(directory.checkpoint(id)).unwrap();
        }
        let partial = directory.partial(id(2, 25), 3);
        std::fs::create_dir_all(&partial).unwrap();
        assert_eq!(directory.list().unwrap(), [id(2, 20), id(1, 30)]);
        assert_eq!(directory.left_over(id(3, 1)).unwrap(), [partial]);
        assert!(directory.left_over(id(2, 25)).unwrap().is_empty());
        assert_eq!(directory.newest_generation().unwrap(), 2);
        std::fs::create_dir_all(directory.ledger()).unwrap();
        std::fs::write(directory.ledger().join(ledger::file_name(7)), "").unwrap();
        assert_eq!(directory.newest_generation().unwrap(), 7);
    }

    #[test]
    fn file_instead_of_directory_lists_nothing() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let directory = Directory::new(file.path().to_owned());
        assert_eq!(directory.list().unwrap(), []);
    }
}
