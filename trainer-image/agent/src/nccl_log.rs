//! Limits the size of NCCL's log. The file is in the run directory, which may be in memory. If a
//! communicator is aborted at a bad moment, the thread that waits for it polls it, and NCCL writes
//! a warning for each poll: about 100 MB per second.

use std::fs::OpenOptions;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use roundhouse_contract::paths;

use crate::say::say;

/// Maximum size of a file before it is emptied. A generation of hundreds of ranks writes a few MiB.
const MOST_BYTES: u64 = 64 << 20;
/// Unit of [`MetadataExt::blocks`] in bytes.
const BLOCK_BYTES: u64 = 512;

/// Empties the log of each process if it has become too large. NCCL continues to write at its own
/// offset, which leaves a hole.
pub(crate) fn keep_small(run_dir: &Path, local_ranks: impl Iterator<Item = u32>) {
    for local_rank in local_ranks {
        let path = paths::rank_nccl_log(run_dir, local_rank);
        if keep_below(&path, MOST_BYTES) {
            say(&format!(
                "{} had {} MiB and was emptied",
                path.display(),
                MOST_BYTES >> 20
            ));
        }
    }
}

/// Empties a file that is too large; returns whether it did. A missing file counts as small.
fn keep_below(path: &Path, most: u64) -> bool {
    let Ok(metadata) = std::fs::metadata(path) else {
        return false;
    };
    let is_large = metadata.is_file() && metadata.blocks() * BLOCK_BYTES > most;
    let file = OpenOptions::new().write(true).open(path);
    is_large && file.and_then(|file| file.set_len(0)).is_ok()
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;

    use super::*;

    #[test]
    fn growing_nccl_log_is_emptied_repeatedly() {
        const MOST: u64 = 1 << 20;
        let directory = tempfile::tempdir().unwrap();
        let path = paths::rank_nccl_log(directory.path(), 0);
        assert!(!keep_below(&path, MOST));
        let mut nccl = File::create(&path).unwrap();
        let bytes = || std::fs::metadata(&path).unwrap().blocks() * BLOCK_BYTES;
        nccl.write_all(b"connected\n").unwrap();
        assert!(!keep_below(&path, MOST));
        assert_eq!(std::fs::read(&path).unwrap(), b"connected\n");
        for _ in 0..3 {
            nccl.write_all(&vec![b'x'; 2 << 20]).unwrap();
            nccl.sync_all().unwrap();
            assert!(bytes() > MOST);
            assert!(keep_below(&path, MOST));
            assert_eq!(bytes(), 0);
            assert!(!keep_below(&path, MOST));
        }
    }
}
