//! Completing a checkpoint whose parts are all durable, and deleting those that are old.

use std::io;
use std::path::Path;

use roundhouse_contract::{BestCheckpoint, BestMetric};
use roundhouse_elastic::CheckpointId;
use roundhouse_elastic::checkpoint::superfluous;

use super::directory::sync_directory;
use super::manifest::{self, Manifest, Shard};
use super::{Directory, Reason, Trouble, pointer, shard};
use crate::faults::{self, Point};
use crate::state::Table;

/// Gives a checkpoint its name. `manifest` lacks the parts, which are read from their records.
///
/// # Errors
/// What went wrong; the checkpoint has no name then.
pub fn complete(directory: &Directory, manifest: Manifest) -> Result<Manifest, Trouble> {
    // Without the checkpoint's name: the same trouble is told of once, not for each checkpoint.
    try_complete(directory, manifest).map_err(Trouble::with(&directory.checkpoints()))
}

fn try_complete(directory: &Directory, mut manifest: Manifest) -> Result<Manifest, Reason> {
    let id = CheckpointId {
        generation: manifest.generation,
        step: manifest.step,
    };
    let partial = directory.partial(id);
    let records: Vec<_> = (0..manifest.world_size)
        .map(|rank| shard::record_name(rank, manifest.world_size))
        .collect();
    for name in &records {
        let shard = read_record(&partial, name)?;
        check_size(&partial, &manifest.tensors, &shard)?;
        manifest.shards.push(shard);
    }
    let text = serde_json::to_vec_pretty(&manifest)?;
    let pulse = directory.pulse();
    pulse.write_durably(&partial.join(manifest::FILE), |file| file.write_all(&text))?;
    for name in &records {
        // They say nothing that the manifest does not.
        let _ = std::fs::remove_file(partial.join(name));
    }
    sync_directory(&partial)?;
    faults::point(Point::Complete, 0, id.step);
    let complete = directory.checkpoint(id);
    if Manifest::read(&complete).is_ok() {
        // It had got its name, and that could not be made durable then: the same state of the same world.
        std::fs::remove_dir_all(&partial)?;
    } else {
        std::fs::rename(&partial, &complete)?;
    }
    sync_directory(&directory.checkpoints())?;
    pulse.beat(1);
    faults::point(Point::Named, 0, id.step);
    Ok(manifest)
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

/// A part whose rank says that it is durable may be cut short all the same, by a volume that lies about its
/// syncs; its checksum is left to whoever loads it.
pub(super) fn check_size(partial: &Path, table: &Table, shard: &Shard) -> Result<(), Reason> {
    // Opened, because a network volume may remember the size of a name from before it was written.
    let found = std::fs::File::open(partial.join(&shard.file))
        .and_then(|file| file.metadata())
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", shard.file)))?
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

/// Which checkpoints are kept.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// So many of the newest ones.
    pub keep: u32,
    /// And the best one by this number.
    pub best: Option<BestMetric>,
}

/// Names the best checkpoint, and then deletes what is older than the newest ones and not the best, and what others
/// before `newest` began and never completed. If the best checkpoint cannot be named, nothing is deleted: the one
/// that is named still is the old one.
///
/// # Errors
/// What went wrong.
pub fn delete_old(
    directory: &Directory,
    newest: CheckpointId,
    retention: Retention,
) -> Result<(), Trouble> {
    let Retention { keep, best: metric } = retention;
    let path = directory.checkpoints();
    let failed = Trouble::with(&path);
    let found: Vec<_> = directory.list().map_err(&failed)?;
    let read = |id| Manifest::read(&directory.checkpoint(id)).ok();
    let found: Vec<_> = found.into_iter().map(|id| (id, read(id))).collect();
    let best = metric.and_then(|metric| best_of(&found, metric));
    if let Some(best) = &best {
        pointer::write(directory, best)?;
    }
    let checkpoints: Vec<_> = found
        .iter()
        .map(|(id, manifest)| (*id, manifest.is_some()))
        .collect();
    let keep = usize::try_from(keep).unwrap_or(usize::MAX);
    let old = superfluous(&checkpoints, keep, best.map(|(id, _)| id));
    let old = old.into_iter().map(|id| directory.checkpoint(id));
    let left_over = directory.left_over(newest).map_err(failed)?;
    let left_over = left_over.into_iter().map(|id| directory.partial(id));
    for path in old.chain(left_over) {
        remove(&path)?;
    }
    Ok(())
}

/// The best checkpoint on the volume. What cannot be read does not count.
#[must_use]
pub fn best(directory: &Directory, metric: BestMetric) -> Option<(CheckpointId, BestCheckpoint)> {
    let ids = directory.list().unwrap_or_default().into_iter();
    let read = |id| Manifest::read(&directory.checkpoint(id)).ok();
    let found: Vec<_> = ids.map(|id| (id, read(id))).collect();
    best_of(&found, metric)
}

fn best_of(
    found: &[(CheckpointId, Option<Manifest>)],
    metric: BestMetric,
) -> Option<(CheckpointId, BestCheckpoint)> {
    let scored = found
        .iter()
        .filter_map(|(id, manifest)| Some((*id, manifest.as_ref()?.scores?)));
    let scored: Vec<_> = scored.collect();
    roundhouse_elastic::best::best(&scored, metric)
}

/// Makes room after a save that failed: what it has written so far goes, and so does all that the next one to
/// be completed would remove. On a full volume nothing is ever completed otherwise.
pub fn make_room(directory: &Directory, failed: CheckpointId, retention: Retention) {
    // Whatever keeps it from being removed keeps the next one from being written, and is told of then.
    let _ = remove(&directory.partial(failed));
    let _ = delete_old(directory, failed, retention);
}

/// Deletes a checkpoint. Its manifest goes first: what is left of it is none.
///
/// # Errors
/// What went wrong.
pub fn remove(path: &Path) -> Result<(), Trouble> {
    let gone = |result: io::Result<()>| match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Trouble::with(path)(error)),
        Ok(()) | Err(_) => Ok(()),
    };
    gone(std::fs::remove_file(path.join(manifest::FILE)))?;
    gone(std::fs::remove_dir_all(path))
}

#[cfg(test)]
mod tests {
    use roundhouse_elastic::best::Scores;
    use roundhouse_elastic::ledger::{Head, Terms};
    use roundhouse_elastic::{Growth, Skips};
    use safetensors::Dtype;

    use super::super::manifest::{Identity, SCHEMA_VERSION};
    use super::*;
    use crate::state::Record;

    /// A checkpoint of one rank, which has written its part of eight bytes.
    fn written(root: &Path) -> (Directory, Manifest) {
        let course = Terms {
            num_samples: 100,
            global_batch: 10,
            seed: 7,
            total_steps: 50,
            reference_replicas: None,
            growth: Growth::default(),
            blocks: None,
        };
        let tensors = Table::from(vec![Record {
            name: "a".to_owned(),
            dtype: Dtype::F32,
            shape: vec![2],
            bytes: 8,
        }]);
        let ledger = Head::start(&course);
        let training = Identity {
            model: "mlp".to_owned(),
            optimizer: "sgd".to_owned(),
            course,
        };
        let manifest = Manifest {
            schema_version: SCHEMA_VERSION,
            saved_at: String::new(),
            generation: 1,
            step: 2,
            epoch: 0,
            cursor: 20,
            pace: None,
            skips: Skips::NONE,
            loss_scale: None,
            scores: None,
            world_size: 1,
            config_hash: training.hash(&tensors),
            training,
            ledger,
            tensors,
            shards: Vec::new(),
        };
        let directory = Directory::new(root.to_owned());
        let part = shard::Part {
            id: ID,
            rank: 0,
            world_size: 1,
            table: &manifest.tensors,
            bytes: &[1; 8],
            pulse: directory.pulse(),
        };
        shard::write(&directory.partial(ID), &part).unwrap();
        (directory, manifest)
    }

    const ID: CheckpointId = CheckpointId {
        generation: 1,
        step: 2,
    };

    #[test]
    fn a_checkpoint_with_all_its_bytes_gets_its_name() {
        let root = tempfile::tempdir().unwrap();
        let (directory, manifest) = written(root.path());
        complete(&directory, manifest).unwrap();
        assert_eq!(directory.list().unwrap(), [ID]);
    }

    #[test]
    fn one_that_the_volume_has_cut_short_does_not() {
        let root = tempfile::tempdir().unwrap();
        let (directory, manifest) = written(root.path());
        let part = directory.partial(ID).join(shard::file_name(0, 1));
        let size = std::fs::metadata(&part).unwrap().len();
        let file = std::fs::File::options().write(true).open(&part).unwrap();
        file.set_len(size - 1).unwrap();
        let told = complete(&directory, manifest).unwrap_err();
        let is_cut = matches!(&told.reason, Reason::CutShort { found, whole, .. } if (*found, *whole) == (size - 1, size));
        assert!(is_cut, "{told}");
        assert_eq!(directory.list().unwrap(), []);
    }

    fn evaluated(root: &Path, step: u64, loss: f64) -> CheckpointId {
        let (directory, mut manifest) = written(root);
        let id = CheckpointId {
            generation: 1,
            step,
        };
        if id != ID {
            std::fs::rename(directory.partial(ID), directory.partial(id)).unwrap();
        }
        manifest.step = step;
        manifest.scores = Some(Scores {
            loss: Some(loss),
            ..Scores::default()
        });
        complete(&directory, manifest).unwrap();
        id
    }

    #[test]
    fn the_best_checkpoint_is_named_and_kept_and_the_old_best_one_is_deleted() {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::new(root.path().to_owned());
        let retention = Retention {
            keep: 2,
            best: Some(BestMetric::Loss),
        };
        let mut ids = Vec::new();
        for (step, loss, best) in [
            (10, 0.5, 10),
            (20, 0.25, 20),
            (30, 0.75, 20),
            (40, 0.25, 20),
            (50, 0.125, 50),
        ] {
            ids.push(evaluated(root.path(), step, loss));
            delete_old(&directory, ids[ids.len() - 1], retention).unwrap();
            let named = pointer::read(&directory).unwrap();
            assert_eq!(named.step, best, "after step {step}");
        }
        // The newest two, one of which is the best.
        assert_eq!(directory.list().unwrap(), [ids[4], ids[3]]);
    }

    #[test]
    fn nothing_is_deleted_if_the_best_checkpoint_cannot_be_named() {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::new(root.path().to_owned());
        for step in [10, 20, 30] {
            evaluated(root.path(), step, 1.0 / step as f64);
        }
        // A directory in the place of the file.
        std::fs::create_dir_all(root.path().join(pointer::FILE).join("x")).unwrap();
        let retention = Retention {
            keep: 2,
            best: Some(BestMetric::Loss),
        };
        let newest = directory.list().unwrap()[0];
        delete_old(&directory, newest, retention).unwrap_err();
        assert_eq!(directory.list().unwrap().len(), 3);
    }
}
