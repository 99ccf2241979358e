//! Gives a complete checkpoint its name, even if a damaged checkpoint has that name.

use std::io;
use std::path::Path;

use roundhouse_elastic::CheckpointId;
use roundhouse_report::say_error;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::checkpoint::directory::sync_directory;
use crate::checkpoint::draft::is_unknown;
use crate::checkpoint::error::{Operation, is_refusal};
use crate::checkpoint::{Directory, Manifest, Reason, load};

/// Gives a checkpoint its name, or returns the manifest of a loadable checkpoint that has it.
pub(super) fn name(
    directory: &Directory,
    partial: &Path,
    id: CheckpointId,
) -> Result<Option<Manifest>, Reason> {
    if let Ok(saved) = load::usable(directory, id) {
        return Ok(Some(saved));
    }
    let complete = directory.checkpoint(id);
    if let Err(error) = std::fs::rename(partial, &complete) {
        let volume_error = match load::usable(directory, id) {
            // Another process has just given the same state its name.
            Ok(saved) => return Ok(Some(saved)),
            Err(volume_error) => volume_error,
        };
        if !has_files(&error) {
            return Err(Reason::of(Operation::RenameDirectory, error));
        }
        let is_known = directory.damaged().of(id).is_some();
        let may_be_whole = volume_error.is_of_the_volume() && !is_known;
        replace(directory, partial, id, may_be_whole)
            .map_err(|error| Reason::of(Operation::RenameDirectory, error))?;
        say_error(&format!(
            "{volume_error}; the same state is saved in its place"
        ));
    }
    directory.damaged().forget(id);
    Ok(None)
}

/// Whether a rename failed because the target directory has files.
fn has_files(error: &io::Error) -> bool {
    use io::ErrorKind::{AlreadyExists, DirectoryNotEmpty};
    matches!(error.kind(), AlreadyExists | DirectoryNotEmpty)
}

/// Gives a checkpoint the name of a damaged one, atomically where the file system supports it. If
/// the damaged one may be whole, its name must not be missing for a moment. The replaced checkpoint
/// is removed if the volume allows it: see [`Directory::left_over`].
fn replace(
    directory: &Directory,
    partial: &Path,
    id: CheckpointId,
    may_be_whole: bool,
) -> io::Result<()> {
    let (complete, aside) = (directory.checkpoint(id), directory.replaced(id));
    let damaged = match exchange(partial, &complete) {
        Err(error) if !may_be_whole && (is_refusal(&error) || is_unknown(&error)) => {
            move_aside(partial, &complete, &aside)
        }
        result => result,
    }?;
    sync_directory(&directory.checkpoints())?;
    let _ = std::fs::remove_dir_all(damaged);
    Ok(())
}

/// Exchanges the two directories. Returns the path of the damaged checkpoint.
fn exchange<'path>(partial: &'path Path, complete: &Path) -> io::Result<&'path Path> {
    renameat_with(CWD, partial, CWD, complete, RenameFlags::EXCHANGE)?;
    Ok(partial)
}

/// Like [`exchange`], in two steps.
fn move_aside<'path>(
    partial: &'path Path,
    complete: &Path,
    aside: &'path Path,
) -> io::Result<&'path Path> {
    let _ = std::fs::remove_dir_all(aside);
    std::fs::rename(complete, aside)?;
    if let Err(error) = std::fs::rename(partial, complete) {
        let _ = std::fs::rename(aside, complete);
        return Err(error);
    }
    Ok(aside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_checkpoint_is_replaced_by_either_way() {
        type Way = for<'path> fn(&'path Path, &Path, &'path Path) -> io::Result<&'path Path>;
        let ways: [Way; 2] = [
            |partial, complete, _| exchange(partial, complete),
            move_aside,
        ];
        let root = tempfile::tempdir().unwrap();
        let [partial, complete, aside] =
            ["partial", "complete", "aside"].map(|it| root.path().join(it));
        for way in ways {
            for (path, text) in [
                (&partial, "whole"),
                (&complete, "damaged"),
                (&aside, "older"),
            ] {
                std::fs::create_dir_all(path).unwrap();
                std::fs::write(path.join("part"), text).unwrap();
            }
            let damaged = way(&partial, &complete, &aside).unwrap();
            assert_eq!(
                std::fs::read_to_string(complete.join("part")).unwrap(),
                "whole"
            );
            assert_eq!(
                std::fs::read_to_string(damaged.join("part")).unwrap(),
                "damaged"
            );
        }
    }
}
