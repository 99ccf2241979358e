//! The prefix of a log line: the rank of a process in its present generation.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use roundhouse_contract::paths;

use crate::ranks;

/// The process from which a line comes.
#[derive(Clone, Debug)]
pub struct Source {
    /// Index of the worker.
    pub worker_index: u32,
    /// Place of the process on the worker.
    pub local_rank: u32,
    /// Directory with the status of the process, which contains its rank.
    pub run_dir: PathBuf,
}

/// Rank and generation of a process, from its status file. The file is read only
/// after it was replaced.
#[derive(Debug)]
pub(super) struct Speaker {
    source: Source,
    /// Inode, length and modification time of the file that was read.
    read: Option<(u64, u64, i64, i64)>,
    /// The prefix: `[worker 1.0] ` in the lobby, `[rank 3] ` in a generation.
    prefix: String,
    generation: u64,
}

impl Speaker {
    pub(super) fn new(source: Source) -> Self {
        let prefix = prefix(&source, None);
        Self {
            source,
            read: None,
            prefix,
            generation: 0,
        }
    }

    /// Reads the status file if it has changed since the last time.
    pub(super) fn refresh(&mut self) {
        let Source {
            worker_index: _,
            local_rank,
            run_dir,
        } = &self.source;
        let found = std::fs::metadata(paths::rank_status(run_dir, *local_rank));
        let found = found.ok().as_ref().map(identity);
        if found == self.read {
            return;
        }
        self.read = found;
        let status = ranks::status(run_dir, *local_rank);
        let (rank, generation) = status.map_or((None, 0), |it| (it.rank, it.generation));
        (self.prefix, self.generation) = (prefix(&self.source, rank), generation);
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(super) fn local_rank(&self) -> u32 {
        self.source.local_rank
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }
}

/// A new status is written to another file and renamed, so it has another inode.
fn identity(metadata: &Metadata) -> (u64, u64, i64, i64) {
    (
        metadata.ino(),
        metadata.len(),
        metadata.mtime(),
        metadata.mtime_nsec(),
    )
}

fn prefix(source: &Source, rank: Option<u32>) -> String {
    match rank {
        Some(rank) => format!("[rank {rank}] "),
        None => format!("[worker {}.{}] ", source.worker_index, source.local_rank),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(run_dir: &std::path::Path, rank: u32, generation: u64) -> PathBuf {
        let path = paths::rank_status(run_dir, 0);
        let partial = path.with_extension("partial");
        let status =
            format!(r#"{{"phase":"Training","rank":{rank},"generation":{generation},"step":9}}"#);
        std::fs::write(&partial, status).unwrap();
        std::fs::rename(&partial, &path).unwrap();
        path
    }

    fn speaker(run_dir: &std::path::Path) -> Speaker {
        Speaker::new(Source {
            worker_index: 2,
            local_rank: 0,
            run_dir: run_dir.to_owned(),
        })
    }

    #[test]
    fn prefix_has_the_rank_of_the_present_generation() {
        let directory = tempfile::tempdir().unwrap();
        let mut speaker = speaker(directory.path());
        let mut prefix = || {
            speaker.refresh();
            (speaker.prefix().to_owned(), speaker.generation())
        };
        assert_eq!(prefix(), ("[worker 2.0] ".to_owned(), 0));
        write(directory.path(), 3, 1);
        assert_eq!(prefix(), ("[rank 3] ".to_owned(), 1));
        let path = write(directory.path(), 1, 2);
        assert_eq!(prefix(), ("[rank 1] ".to_owned(), 2));
        std::fs::remove_file(path).unwrap();
        assert_eq!(prefix(), ("[worker 2.0] ".to_owned(), 0));
    }

    #[test]
    fn unchanged_status_is_not_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = write(directory.path(), 3, 1);
        let mut speaker = speaker(directory.path());
        speaker.refresh();
        // The same file, according to all metadata of the file system.
        let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("\"rank\":3", "\"rank\":8")).unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(modified).unwrap();
        speaker.refresh();
        assert_eq!(speaker.prefix(), "[rank 3] ");
    }
}
