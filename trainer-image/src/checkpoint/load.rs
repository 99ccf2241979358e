//! Finding the checkpoint to go on with: the newest one that is whole.

use roundhouse_elastic::CheckpointId;

use super::manifest::{Identity, Manifest};
use super::snapshot::Table;
use super::{Directory, Reason, Trouble, shard};
use crate::failure::Failure;
use crate::report::say_error;

/// A checkpoint whose every byte was checked.
#[derive(Debug)]
pub struct Loaded {
    /// Which.
    pub id: CheckpointId,
    /// What it says of itself.
    pub manifest: Manifest,
    /// The bytes of all tensors, in the order of their table.
    pub bytes: Vec<u8>,
}

/// Loads the newest checkpoint that is whole; `None` if there is none at all. Those that are damaged
/// are passed over, and it is said why.
///
/// # Errors
/// [`Failure::OtherTraining`] when the newest one's state does not fit, [`Failure::NoCheckpointUsable`]
/// when all are damaged: to begin again would be to throw them away. [`Failure::Io`] when the directory
/// cannot be read.
pub fn newest(
    directory: &Directory,
    training: &Identity,
    table: &Table,
) -> Result<Option<Loaded>, Failure> {
    let path = directory.checkpoints();
    let list = || directory.list().map_err(Failure::io(&path));
    let mut ids = list()?;
    loop {
        let mut newest_reason = None;
        for id in &ids {
            match load(directory, *id, training, table)? {
                Ok(loaded) => return Ok(Some(loaded)),
                Err(reason) => {
                    say_error(&format!("a checkpoint is passed over: {reason}"));
                    newest_reason.get_or_insert(reason);
                }
            }
        }
        let Some(reason) = newest_reason else {
            return Ok(None);
        };
        // A world that trains on meanwhile replaces old checkpoints by new ones.
        let now = list()?;
        if now == ids {
            return Err(Failure::NoCheckpointUsable {
                path,
                number: ids.len(),
                reason,
            });
        }
        ids = now;
    }
}

/// One checkpoint; the inner error says why it cannot be used, whoever wants it.
fn load(
    directory: &Directory,
    id: CheckpointId,
    training: &Identity,
    table: &Table,
) -> Result<Result<Loaded, Trouble>, Failure> {
    let path = directory.checkpoint(id);
    let manifest = match Manifest::read(&path) {
        Ok(manifest) => manifest,
        Err(reason) => return Ok(Err(reason)),
    };
    if let Some(difference) = manifest.difference(training, table) {
        return Err(Failure::OtherTraining { path, difference });
    }
    let read = || {
        check(&manifest, id).map_err(Trouble::with(&path))?;
        let mut bytes = Vec::with_capacity(usize::try_from(table.num_bytes()).unwrap_or(0));
        for shard in &manifest.shards {
            bytes.extend(shard::read(&path, shard, directory.pulse())?);
        }
        Ok(bytes)
    };
    Ok(read().map(|bytes| Loaded {
        id,
        manifest: manifest.clone(),
        bytes,
    }))
}

/// Whether what the manifest says fits together.
fn check(manifest: &Manifest, id: CheckpointId) -> Result<(), Reason> {
    if (manifest.generation, manifest.step) != (id.generation, id.step) {
        return Err(Reason::OtherCheckpoint);
    }
    if manifest.config_hash != manifest.training.hash(&manifest.tensors) {
        return Err(Reason::ConfigHash);
    }
    let is_part = |(rank, shard): (u32, &super::manifest::Shard)| {
        shard.pieces == shard::records(&manifest.tensors, rank, manifest.world_size)
    };
    let num_shards = u32::try_from(manifest.shards.len());
    if num_shards != Ok(manifest.world_size) || !(0..).zip(&manifest.shards).all(is_part) {
        return Err(Reason::Parts);
    }
    if manifest.ledger.step != manifest.step {
        return Err(Reason::LedgerStep);
    }
    Ok(())
}
