//! Checks whether the volume's file system supports the operations that checkpoints and ledger
//! need. Mounts of object stores support only some. Without this check only the first save would
//! fail, with the error of a single call.

use std::io;
use std::path::Path;

use super::directory::sync_directory;
use super::draft::{Draft, draft_name};
use super::error::Operation;
use super::{Directory, IoWatch, Reason, VolumeError};

/// Tries each operation once, in a directory that it creates and removes. `None`: the file system
/// supports all of them, or another error came first, which each save will report.
pub(super) fn probe(directory: &Directory) -> Option<VolumeError> {
    let root = directory.root();
    let name = format!(".probe{}", draft_name());
    let (place, named) = (root.join(&name), root.join(format!("{name}.named")));
    let tried = try_all(root, &place, &named, directory.io_watch());
    if tried.is_err() {
        for left in [&place, &named] {
            let _ = std::fs::remove_dir_all(left);
        }
    }
    match tried {
        Err(reason @ Reason::Refused(..)) => Some(VolumeError::with(root)(reason)),
        Ok(()) | Err(_) => None,
    }
}

/// Runs the operations in the order in which a first save needs them.
fn try_all(root: &Path, place: &Path, named: &Path, io_watch: &IoWatch) -> Result<(), Reason> {
    let refused = |operation| move |error: io::Error| Reason::of(operation, error);
    let write = |path: &Path| io_watch.write_durably(path, |file| file.write_all(b"probe"));
    std::fs::create_dir_all(root)?;
    std::fs::create_dir(place).map_err(refused(Operation::MakeDirectory))?;
    write(&place.join("part")).map_err(refused(Operation::Write))?;
    sync_directory(place).map_err(refused(Operation::SyncDirectory))?;
    std::fs::rename(place, named).map_err(refused(Operation::RenameDirectory))?;
    write(&named.join("draft")).map_err(refused(Operation::Write))?;
    std::fs::rename(named.join("draft"), named.join("part"))
        .map_err(refused(Operation::ReplaceFile))?;
    let draft = Draft::write(named, "probe")?;
    let published = draft.publish(&named.join("once"));
    published.map_err(refused(Operation::NameOnce))?;
    drop(draft);
    std::fs::remove_dir_all(named).map_err(refused(Operation::Remove))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capable_volume_is_left_unchanged() {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::new(root.path().join("job"));
        assert!(probe(&directory).is_none());
        assert_eq!(std::fs::read_dir(directory.root()).unwrap().count(), 0);
    }

    #[test]
    fn probe_ignores_errors_other_than_refusals() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(probe(&Directory::new(file.path().to_owned())).is_none());
    }
}
