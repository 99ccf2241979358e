//! Completes checkpoints whose parts are all durable, and deletes old ones.

use std::io;
use std::path::Path;

use roundhouse_contract::{BestCheckpoint, BestMetric};
use roundhouse_elastic::CheckpointId;
use roundhouse_elastic::checkpoint::superfluous;

use super::directory::sync_directory;
use super::manifest::{self, Manifest, Shard};
use super::{Directory, Reason, VolumeError, best_file, load, shard};
use crate::faults::{self, Point};
use crate::state::Table;

mod naming;

/// Gives a checkpoint its name. `manifest` has no parts yet; they are read from the records that
/// the ranks of generation `writer` have written.
///
/// # Errors
/// [`VolumeError`] if a part is missing or the volume refuses a write. The checkpoint then has no
/// name.
pub fn complete(
    directory: &Directory,
    manifest: Manifest,
    writer: u64,
) -> Result<Manifest, VolumeError> {
    let partial = directory.partial(manifest.id(), writer);
    complete_from(directory, &partial, manifest)
}

/// Like [`complete`], for a checkpoint whose parts are in the directory `partial`.
///
/// # Errors
/// As [`complete`].
pub fn complete_from(
    directory: &Directory,
    partial: &Path,
    manifest: Manifest,
) -> Result<Manifest, VolumeError> {
    // The path is that of all checkpoints, so that the same error is reported once and not for each
    // checkpoint.
    try_complete(directory, partial, manifest).map_err(VolumeError::with(&directory.checkpoints()))
}

fn try_complete(
    directory: &Directory,
    partial: &Path,
    mut manifest: Manifest,
) -> Result<Manifest, Reason> {
    let id = manifest.id();
    let records: Vec<_> = (0..manifest.world_size)
        .map(|rank| shard::record_name(rank, manifest.world_size))
        .collect();
    for name in &records {
        let shard = read_record(partial, name)?;
        check_size(partial, &manifest.tensors, &shard)?;
        manifest.shards.push(shard);
    }
    let text = serde_json::to_vec_pretty(&manifest)?;
    let io_watch = directory.io_watch();
    io_watch.write_durably(&partial.join(manifest::FILE), |file| file.write_all(&text))?;
    for name in &records {
        // The manifest now contains these records.
        let _ = std::fs::remove_file(partial.join(name));
    }
    sync_directory(partial)?;
    faults::point(Point::Complete, 0, id.step);
    if let Some(saved) = naming::name(directory, partial, id)? {
        // The checkpoint exists: another generation or process has saved the same state, or an
        // earlier attempt could not make the name durable.
        manifest = with_scores(saved, &manifest, &directory.checkpoint(id), io_watch)?;
        std::fs::remove_dir_all(partial)?;
    }
    sync_directory(&directory.checkpoints())?;
    io_watch.advance(1);
    faults::point(Point::Named, 0, id.step);
    Ok(manifest)
}

/// Returns the manifest of a checkpoint whose state was saved twice. If the state has been
/// evaluated since the first save, the manifest is replaced by one with the scores.
fn with_scores(
    saved: Manifest,
    again: &Manifest,
    complete: &Path,
    io_watch: &super::IoWatch,
) -> Result<Manifest, Reason> {
    if again.scores.is_none() || again.scores == saved.scores {
        return Ok(saved);
    }
    let saved = Manifest {
        scores: again.scores,
        ..saved
    };
    let text = serde_json::to_vec_pretty(&saved)?;
    let draft = complete.join(manifest::DRAFT);
    io_watch.write_durably(&draft, |file| file.write_all(&text))?;
    std::fs::rename(&draft, complete.join(manifest::FILE))?;
    sync_directory(complete)?;
    Ok(saved)
}

fn read_record(partial: &Path, name: &str) -> Result<Shard, Reason> {
    let text = std::fs::read(partial.join(name)).map_err(|error| {
        if error.kind() == io::ErrorKind::NotFound {
            Reason::NotShared(name.to_owned())
        } else {
            error.into()
        }
    })?;
    Ok(serde_json::from_slice(&text)?)
}

/// Checks the size of a part. A volume that does not honor fsync may have truncated a part that its
/// rank reported as durable. The rank that loads the part verifies its checksum.
pub(super) fn check_size(partial: &Path, table: &Table, shard: &Shard) -> Result<(), Reason> {
    // Open the file, because a network volume may cache the size from before the write.
    let path = partial.join(&shard.file);
    let found = faults::stale(&path)
        .and_then(|()| std::fs::File::open(&path)?.metadata())
        .map_err(|error| Reason::OfFile(shard.file.clone(), error))?
        .len();
    let whole = shard::file_size(table, shard)?;
    if found == whole {
        return Ok(());
    }
    Err(Reason::CutShort {
        file: shard.file.clone(),
        found,
        whole,
    })
}

/// Which checkpoints to keep.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// Number of newest checkpoints to keep.
    pub keep: u32,
    /// Also keep the best checkpoint by this metric.
    pub best: Option<BestMetric>,
}

/// Lists the checkpoints on the volume, newest first. `None`: the checkpoint is damaged and does
/// not count.
///
/// # Errors
/// [`VolumeError`] if the volume cannot be read. A checkpoint that is unreadable now may be whole.
pub fn manifests(directory: &Directory) -> Result<Manifests, VolumeError> {
    each(directory, load::counted)
}

fn each(
    directory: &Directory,
    read: impl Fn(&Directory, CheckpointId) -> Result<Option<Manifest>, VolumeError>,
) -> Result<Manifests, VolumeError> {
    let ids = directory.steady_list()?;
    let read = |id| Ok((id, read(directory, id)?));
    ids.into_iter().map(read).collect()
}

/// Checkpoints with their manifests, as returned by [`manifests`].
pub type Manifests = Vec<(CheckpointId, Option<Manifest>)>;

/// Names the best checkpoint in `best.json`. Then deletes the checkpoints that are neither among
/// the newest ones nor the best, and incomplete checkpoints of other writers before `newest`. If
/// the volume cannot be read or `best.json` cannot be written, nothing is deleted.
///
/// # Errors
/// [`VolumeError`] for the first operation that the volume refuses.
pub fn delete_old(
    directory: &Directory,
    newest: CheckpointId,
    retention: Retention,
) -> Result<(), VolumeError> {
    let found = manifests(directory)?;
    let best = best_of(&found, retention.best);
    name_best(directory, best.as_ref())?;
    let checkpoints: Vec<_> = found
        .iter()
        .map(|(id, manifest)| (*id, manifest.is_some()))
        .collect();
    let keep = usize::try_from(retention.keep).unwrap_or(usize::MAX);
    let old = superfluous(&checkpoints, keep, best.map(|(id, _)| id));
    let old = old.into_iter().map(|id| directory.checkpoint(id));
    let left_over = directory.left_over(newest);
    let left_over = left_over.map_err(VolumeError::with(&directory.checkpoints()))?;
    for path in old.chain(left_over) {
        remove(&path)?;
        directory.io_watch().advance(1);
    }
    Ok(())
}

/// Makes `best.json` name the best checkpoint, or removes the file if there is none.
///
/// # Errors
/// [`VolumeError`] if the file cannot be written or removed.
pub fn name_best(
    directory: &Directory,
    best: Option<&(CheckpointId, BestCheckpoint)>,
) -> Result<(), VolumeError> {
    match best {
        Some(best) => best_file::write(directory, best),
        None => best_file::remove(directory),
    }
}

/// Finds the best checkpoint on the volume.
///
/// # Errors
/// Those of [`manifests`].
pub fn best(
    directory: &Directory,
    metric: BestMetric,
) -> Result<Option<(CheckpointId, BestCheckpoint)>, VolumeError> {
    // Each process calls this when it starts, so it reads only manifests.
    Ok(best_of(&each(directory, load::manifest)?, Some(metric)))
}

/// Returns the best of these checkpoints; `None` if none was evaluated or none is to be kept.
#[must_use]
pub fn best_of(
    found: &[(CheckpointId, Option<Manifest>)],
    metric: Option<BestMetric>,
) -> Option<(CheckpointId, BestCheckpoint)> {
    let scored = found
        .iter()
        .filter_map(|(id, manifest)| Some((*id, manifest.as_ref()?.scores?)));
    let scored: Vec<_> = scored.collect();
    roundhouse_elastic::best::best(&scored, metric?)
}

/// Frees space after a failed save: removes its parts and everything that the next completed save
/// would remove. Otherwise no save could ever complete on a full volume.
pub fn make_room(directory: &Directory, failed: CheckpointId, writer: u64, retention: Retention) {
    // If this fails, the next save fails for the same reason and reports it.
    let _ = remove(&directory.partial(failed, writer));
    let _ = delete_old(directory, failed, retention);
}

/// Deletes a checkpoint, the manifest first: a directory without a manifest is not a checkpoint.
///
/// # Errors
/// [`VolumeError`] for the first operation that the volume refuses.
pub fn remove(path: &Path) -> Result<(), VolumeError> {
    let gone = |result: io::Result<()>| match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(VolumeError::with(path)(error))
        }
        Ok(()) | Err(_) => Ok(()),
    };
    gone(std::fs::remove_file(path.join(manifest::FILE)))?;
    gone(std::fs::remove_dir_all(path))
}

#[cfg(test)]
pub(crate) mod tests;
