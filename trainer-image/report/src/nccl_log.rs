//! The log file of NCCL, if the agent has set it. NCCL keeps the file open for the life of the
//! process and writes at its own offset. Truncating the file frees its memory and does not change
//! that offset, so later lines follow a hole.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use roundhouse_contract::paths;

use super::transports::Transports;

/// Maximum size that is read of one generation's lines.
const MOST_BYTES: u64 = 4 << 20;

/// The log file of one process.
#[derive(Debug)]
pub(super) struct NcclLog {
    path: PathBuf,
    /// Position of the present generation's first line.
    start: u64,
}

impl NcclLog {
    /// The log file in the run directory. `None` if `file`, the value of `NCCL_DEBUG_FILE`, is
    /// another one: then the user reads NCCL's log elsewhere.
    #[must_use]
    pub(super) fn of(run_dir: &Path, local_rank: u32, file: Option<&OsStr>) -> Option<Self> {
        let path = paths::rank_nccl_log(run_dir, local_rank);
        (file == Some(path.as_os_str())).then_some(Self { path, start: 0 })
    }

    /// Drops the lines of earlier generations. If this fails, they stay, which costs only memory.
    pub(super) fn begin_generation(&mut self) {
        let Ok(file) = OpenOptions::new().write(true).open(&self.path) else {
            return;
        };
        let length = file.metadata().map_or(0, |metadata| metadata.len());
        // A truncated file is short until the next line.
        self.start = self.start.max(length);
        let _ = file.set_len(0);
    }

    /// The transports that NCCL has logged since the generation began.
    #[must_use]
    pub(super) fn transports(&self) -> Transports {
        Transports::parse(&self.read().unwrap_or_default())
    }

    fn read(&self) -> std::io::Result<String> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.start))?;
        let mut bytes = Vec::new();
        file.take(MOST_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    const SOCKET: &str =
        "worker-0:7:19 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/Socket/0\n";
    const SHARED: &str =
        "worker-0:7:19 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct\n";

    #[test]
    fn nccl_log_is_emptied_per_generation() {
        let directory = tempfile::tempdir().unwrap();
        let path = paths::rank_nccl_log(directory.path(), 3);
        let mut log = NcclLog::of(directory.path(), 3, Some(path.as_os_str())).unwrap();
        log.begin_generation();
        assert_eq!(log.transports(), Transports::default());

        // Open it like NCCL, not for appending.
        let mut nccl = File::create(&path).unwrap();
        nccl.write_all(SOCKET.repeat(2_000).as_bytes()).unwrap();
        let line = log.transports().to_line();
        assert_eq!(line.as_deref(), Some("NET/Socket (2000 connections)"));
        let before = std::fs::metadata(&path).unwrap().blocks();

        log.begin_generation();
        // A generation that ends before NCCL logs anything.
        log.begin_generation();
        assert_eq!(log.transports(), Transports::default());
        nccl.write_all(SHARED.as_bytes()).unwrap();
        let line = log.transports().to_line();
        assert_eq!(line.as_deref(), Some("SHM (1 connection)"));
        assert!(std::fs::metadata(&path).unwrap().blocks() < before);
    }

    #[test]
    fn a_file_that_the_user_has_named_is_not_touched() {
        let run_dir = Path::new("/run/roundhouse");
        assert!(NcclLog::of(run_dir, 0, None).is_none());
        assert!(NcclLog::of(run_dir, 0, Some(OsStr::new("/tmp/nccl.log"))).is_none());
        let other = paths::rank_nccl_log(run_dir, 1);
        assert!(NcclLog::of(run_dir, 0, Some(other.as_os_str())).is_none());
    }
}
