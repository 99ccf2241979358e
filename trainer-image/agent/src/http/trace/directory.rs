//! The directory of traces, below the system's temporary directory on a disk. The run directory is
//! memory, which counts against the container's limit.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::process::getuid;

/// Only this user may read the directory.
const MODE: u32 = 0o700;

/// Directory of this process. The agent of a pod usually is process 1, so a restarted container
/// uses the directory of its predecessor.
pub(super) fn of_this_process() -> PathBuf {
    std::env::temp_dir().join(format!("roundhouse-trace-{}", std::process::id()))
}

/// Creates the directory if it is missing.
///
/// # Errors
/// Returns an error if the directory cannot be created, or belongs to another user, who could
/// redirect the trace to another file.
pub(super) fn make(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(MODE).create(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        result => return result,
    }
    let found = std::fs::symlink_metadata(directory)?;
    if !found.is_dir() || found.uid() != getuid().as_raw() {
        let text = format!("{} belongs to another user", directory.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    std::fs::set_permissions(directory, Permissions::from_mode(MODE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_of_another_user_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("traces");
        for _ in 0..2 {
            make(&directory).unwrap();
            let mode = std::fs::metadata(&directory).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, MODE);
            std::fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
        }
        let link = root.path().join("link");
        std::os::unix::fs::symlink(&directory, &link).unwrap();
        let error = make(&link).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }
}
