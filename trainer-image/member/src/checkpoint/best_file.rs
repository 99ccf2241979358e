//! `best.json` names the best checkpoint. It can be derived from the manifests; the file is for
//! people and programs.

use roundhouse_contract::{BestCheckpoint, BestMetric};
use roundhouse_elastic::CheckpointId;
use serde::{Deserialize, Serialize};

use super::directory::sync_directory;
use super::error::is_absence;
use super::{Directory, Reason, VolumeError};

/// Name of the file in the job's directory.
pub const FILE: &str = "best.json";
/// Temporary name of the file until it is durable.
const PARTIAL: &str = ".best.json.partial";

/// Contents of the file `best.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BestFile {
    /// Directory of the checkpoint, relative to the job's directory.
    pub checkpoint: String,
    /// Number of committed steps in the checkpoint.
    pub step: u64,
    /// Metric by which the checkpoints are compared.
    pub metric: BestMetric,
    /// Value of the metric.
    pub value: f64,
}

/// Reads the file; `None` if it is missing or unreadable.
#[must_use]
pub fn read(directory: &Directory) -> Option<BestFile> {
    let text = std::fs::read(directory.root().join(FILE)).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Names the best checkpoint, unless the file already does. A reader sees the old file or the new
/// one.
///
/// # Errors
/// [`VolumeError`] if the file cannot be written.
pub(super) fn write(
    directory: &Directory,
    (id, best): &(CheckpointId, BestCheckpoint),
) -> Result<(), VolumeError> {
    let BestCheckpoint {
        step,
        metric,
        value,
    } = *best;
    let best_file = BestFile {
        checkpoint: format!("checkpoints/{}", id.name()),
        step,
        metric,
        value,
    };
    if read(directory).as_ref() == Some(&best_file) {
        return Ok(());
    }
    let path = directory.root().join(FILE);
    try_write(directory, &best_file).map_err(VolumeError::with(&path))
}

/// Removes the file, if it exists, because no checkpoint is the best one.
///
/// # Errors
/// [`VolumeError`] if the file cannot be removed.
pub(super) fn remove(directory: &Directory) -> Result<(), VolumeError> {
    let path = directory.root().join(FILE);
    if std::fs::symlink_metadata(&path).is_err_and(|error| is_absence(&error)) {
        // A read-only volume refuses to remove even a missing file.
        return Ok(());
    }
    match std::fs::remove_file(&path) {
        Err(error) if !is_absence(&error) => Err(error),
        Ok(()) | Err(_) => sync_directory(directory.root()),
    }
    .map_err(VolumeError::with(&path))
}

fn try_write(directory: &Directory, best_file: &BestFile) -> Result<(), Reason> {
    let root = directory.root();
    let mut text = serde_json::to_vec_pretty(best_file)?;
    text.push(b'\n');
    let partial = root.join(PARTIAL);
    let io_watch = directory.io_watch();
    io_watch.write_durably(&partial, |file| file.write_all(&text))?;
    std::fs::rename(&partial, root.join(FILE))?;
    sync_directory(root)?;
    io_watch.advance(1);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn best_file_names_checkpoint_and_is_replaced_atomically() {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::new(root.path().to_owned());
        assert_eq!(read(&directory), None);
        for (step, value) in [(10, 0.5), (20, 0.25)] {
            let id = CheckpointId {
                generation: 3,
                step,
            };
            let best = BestCheckpoint {
                step,
                metric: BestMetric::Loss,
                value,
            };
            write(&directory, &(id, best)).unwrap();
            let best_file = read(&directory).unwrap();
            assert_eq!(best_file.checkpoint, format!("checkpoints/{}", id.name()));
            assert_eq!((best_file.step, best_file.value), (step, value));
        }
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 1);
    }
}
