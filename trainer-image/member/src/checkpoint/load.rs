//! Finds the checkpoint to continue with, and reads it.
//!
//! Every process finds it, from manifests and file sizes alone. One process reads it and verifies
//! every byte.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use roundhouse_elastic::CheckpointId;
use roundhouse_elastic::state::layout::{Runs, TensorRuns, cover_once};
use roundhouse_report::say_error;

use super::error::steadily;
use super::manifest::{Identity, Manifest};
use super::{Damage, Directory, Reason, VolumeError, complete, shard};
use crate::failure::Failure;
use crate::faults;
use crate::state::Table;

/// Bytes of a part of a tensor. They may be at many places: a part of each row of the tensor.
#[derive(Debug)]
pub struct Bytes {
    all: Vec<u8>,
    /// Runs of the bytes, in their order: the position of the first byte in the state's row of
    /// bytes, and their number.
    runs: Vec<(u64, usize)>,
}

impl Bytes {
    /// The bytes, each with the position of the first one in the state's row of bytes.
    pub fn runs(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let mut rest = self.all.as_slice();
        self.runs.iter().map(move |(offset, length)| {
            let (run, after) = rest.split_at(*length);
            rest = after;
            (*offset, run)
        })
    }
}

/// Message of the reading thread.
#[derive(Debug)]
pub enum Message {
    /// Bytes of the state. They are valid only after [`Self::Whole`].
    Bytes(Bytes),
    /// All bytes were sent, and the checksums are right.
    Whole,
    /// The checkpoint cannot be used, for this reason.
    Damaged(VolumeError),
}

/// Finds the newest checkpoint with a valid manifest and files of the right sizes. Skips
/// checkpoints that are known to be damaged and logs each with the reason. `None`: there is no
/// checkpoint.
///
/// # Errors
/// [`Failure::OtherTraining`] if the newest checkpoint belongs to a different training.
/// [`Failure::NoCheckpointUsable`] if all are damaged: starting again from step 0 would discard
/// them. [`Failure::Volume`] if the directory cannot be listed, or if no checkpoint is usable and
/// at least one could not be read.
pub fn find(
    directory: &Directory,
    training: &Identity,
    table: &Table,
) -> Result<Option<Manifest>, Failure> {
    let path = directory.checkpoints();
    let mut ids = directory.steady_list()?;
    loop {
        let mut reasons = Vec::new();
        for id in &ids {
            let found = match known(directory, *id) {
                Some(reason) => Err(reason),
                None => examine(directory, *id, training, table)?.inspect_err(|reason| {
                    say_error(&format!("skipping a checkpoint: {reason}"));
                }),
            };
            match found {
                Ok(manifest) => return Ok(Some(manifest)),
                Err(reason) => reasons.push(reason),
            }
        }
        if reasons.is_empty() {
            return Ok(None);
        }
        // A group that is still training may have replaced old checkpoints with new ones.
        let now = directory.steady_list()?;
        if now == ids {
            if let Some(refused) = reasons.iter().position(VolumeError::is_of_the_volume) {
                return Err(reasons.swap_remove(refused).into());
            }
            return Err(Failure::NoCheckpointUsable {
                path,
                number: ids.len(),
                reason: reasons.swap_remove(0),
            });
        }
        ids = now;
    }
}

/// Returns the damage that ranks have found in a checkpoint.
fn known(directory: &Directory, id: CheckpointId) -> Option<VolumeError> {
    let reason = match directory.damaged().of(id)? {
        Damage::Bytes => Reason::Damaged,
        Damage::Unread => Reason::Unread,
    };
    Some(VolumeError::with(&directory.checkpoint(id))(reason))
}

/// Checks one checkpoint. The inner error says why no training can use it.
fn examine(
    directory: &Directory,
    id: CheckpointId,
    training: &Identity,
    table: &Table,
) -> Result<Result<Manifest, VolumeError>, Failure> {
    faults::volume();
    let path = directory.checkpoint(id);
    let manifest = match steadily(|| Manifest::read(&path)) {
        Ok(manifest) => manifest,
        Err(reason) => return Ok(Err(reason)),
    };
    if let Some(difference) = manifest.difference(training, table) {
        return Err(Failure::OtherTraining { path, difference });
    }
    Ok(steadily(|| whole(&path, id, &manifest)).map(|()| manifest))
}

/// Returns the manifest of a checkpoint of any training, if it is consistent, all files have their
/// sizes, and no rank has found damaged bytes.
///
/// # Errors
/// [`VolumeError`] with the reason why the checkpoint cannot be used.
pub fn usable(directory: &Directory, id: CheckpointId) -> Result<Manifest, VolumeError> {
    if let Some(reason) = known(directory, id) {
        return Err(reason);
    }
    let path = directory.checkpoint(id);
    steadily(|| {
        let manifest = Manifest::read(&path)?;
        whole(&path, id, &manifest).map(|()| manifest)
    })
}

/// Returns the manifest of a checkpoint; `None` if the manifest is missing or broken, or if a rank
/// has failed to read the checkpoint.
///
/// # Errors
/// [`VolumeError`] if the volume cannot be read, so the state of the checkpoint is unknown.
pub fn manifest(directory: &Directory, id: CheckpointId) -> Result<Option<Manifest>, VolumeError> {
    if known(directory, id).is_some() {
        return Ok(None);
    }
    match Manifest::read(&directory.checkpoint(id)) {
        Ok(manifest) => Ok(Some(manifest)),
        Err(volume_error) if volume_error.is_of_the_volume() => Err(volume_error),
        Err(_) => Ok(None),
    }
}

/// Like [`manifest`], for retention: `None` also if a file is missing or has the wrong size. A file
/// that cannot be opened now does not count as damaged.
///
/// # Errors
/// Those of [`manifest`].
pub fn counted(directory: &Directory, id: CheckpointId) -> Result<Option<Manifest>, VolumeError> {
    let path = directory.checkpoint(id);
    let is_damaged = |manifest: &Manifest| {
        whole(&path, id, manifest).is_err_and(|volume_error| !volume_error.is_of_the_volume())
    };
    Ok(manifest(directory, id)?.filter(|manifest| !is_damaged(manifest)))
}

fn whole(path: &Path, id: CheckpointId, manifest: &Manifest) -> Result<(), VolumeError> {
    let has_size = |shard| complete::check_size(path, &manifest.tensors, shard);
    let is_whole = check(manifest, id).and_then(|()| manifest.shards.iter().try_for_each(has_size));
    is_whole.map_err(VolumeError::with(path))
}

/// Reads a checkpoint in a thread, one piece at a time, part after part. The checksum of a part is
/// known after its last piece, so no byte is valid before [`Message::Whole`]. The thread ends when
/// the receiver is dropped.
///
/// # Errors
/// [`Failure::Internal`] if the operating system refuses the thread.
pub fn read(directory: &Directory, manifest: Manifest) -> Result<Receiver<Message>, Failure> {
    // One piece waits while the thread reads the next.
    let (pieces, messages) = sync_channel(1);
    let directory = directory.clone();
    let work = move || {
        let path = directory.checkpoint(manifest.id());
        let starts: HashMap<_, _> = manifest
            .tensors
            .views()
            .iter()
            .map(|view| (view.name.as_str(), view.offset))
            .collect();
        for part in &manifest.shards {
            // A retry overwrites the bytes that the part gave before.
            let result = steadily(|| {
                shard::read(&path, part, directory.io_watch(), |piece, at, bytes| {
                    let start = starts
                        .get(piece.tensor.as_str())
                        .copied()
                        .unwrap_or_default();
                    send(&pieces, &piece.runs(), start, at, bytes)
                })
            });
            match result {
                Ok(ControlFlow::Continue(())) => {}
                Ok(ControlFlow::Break(())) => return,
                Err(volume_error) => {
                    let _ = pieces.send(Message::Damaged(volume_error));
                    return;
                }
            }
        }
        let _ = pieces.send(Message::Whole);
    };
    std::thread::Builder::new()
        .name("volume".to_owned())
        .spawn(work)
        .map_err(|error| Failure::Internal(format!("no thread to read a checkpoint: {error}")))?;
    Ok(messages)
}

/// Sends bytes of a piece of the tensor that begins at `start`. `at`: their position in the piece.
fn send(
    pieces: &SyncSender<Message>,
    runs: &Runs,
    start: u64,
    at: u64,
    bytes: Vec<u8>,
) -> ControlFlow<()> {
    let (mut found, mut left) = (Vec::new(), bytes.len());
    while left > 0 {
        let (place, rest) = runs.place(at + (bytes.len() - left) as u64);
        let length = usize::try_from(rest).unwrap_or(usize::MAX).min(left);
        found.push((start + place, length));
        left -= length;
    }
    // One message: all ranks take part in a collective for each.
    let message = Message::Bytes(Bytes {
        all: bytes,
        runs: found,
    });
    match pieces.send(message) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    }
}

/// Whether the parts have each byte of each tensor once.
fn covers_all_tensors(manifest: &Manifest) -> bool {
    let views = manifest.tensors.views();
    let indices: HashMap<_, _> = views
        .iter()
        .enumerate()
        .map(|(index, view)| (view.name.as_str(), index))
        .collect();
    let pieces = manifest.shards.iter().flat_map(|shard| &shard.pieces);
    let known = pieces.map(|piece| {
        let tensor = indices.get(piece.tensor.as_str()).copied();
        tensor.map(|tensor| TensorRuns {
            tensor,
            runs: piece.runs(),
        })
    });
    let known: Option<Vec<_>> = known.collect();
    known.is_some_and(|pieces| cover_once(&manifest.tensors.sizes(), pieces))
}

/// Checks that the manifest is consistent.
fn check(manifest: &Manifest, id: CheckpointId) -> Result<(), Reason> {
    if manifest.id() != id {
        return Err(Reason::OtherCheckpoint);
    }
    if manifest.config_hash != manifest.training.hash(&manifest.tensors) {
        return Err(Reason::ConfigHash);
    }
    let num_shards = u32::try_from(manifest.shards.len());
    if num_shards != Ok(manifest.world_size) || !covers_all_tensors(manifest) {
        return Err(Reason::Parts);
    }
    if manifest.ledger.step != manifest.step || manifest.chain().head() != manifest.ledger {
        return Err(Reason::LedgerStep);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All ranks take part in a collective for each message, so a part of many rows is one.
    #[test]
    fn part_of_all_rows_of_a_tensor_is_one_message() {
        let (pieces, messages) = sync_channel(1);
        // Two bytes of each row of five.
        let runs = Runs {
            start: 1,
            length: 2,
            count: 4,
            stride: 5,
        };
        let sent = send(&pieces, &runs, 100, 3, vec![3, 4, 5, 6, 7]);
        assert_eq!(sent, ControlFlow::Continue(()));
        drop(pieces);
        let found: Vec<_> = messages.iter().collect();
        let [Message::Bytes(bytes)] = found.as_slice() else {
            panic!("{found:?}");
        };
        let found: Vec<_> = bytes.runs().collect();
        let expected: [(u64, &[u8]); 3] = [(107, &[3]), (111, &[4, 5]), (116, &[6, 7])];
        assert_eq!(found, expected);
    }
}
