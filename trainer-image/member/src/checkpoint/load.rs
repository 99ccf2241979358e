//! Finding the checkpoint to continue with, and reading it.
//!
//! Every process finds it, from manifests and the sizes of files alone. One process reads it, and checks every byte.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use roundhouse_elastic::CheckpointId;

use super::manifest::{Identity, Manifest};
use super::{Damage, Directory, Reason, Trouble, complete, shard};
use crate::failure::Failure;
use crate::faults;
use crate::report::say_error;
use crate::state::Table;

/// How long an error is waited out that may pass. One that lasts is taken for damage: training can continue from an older
/// checkpoint, and this one stays on the volume.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(100);

/// What the thread that reads says.
#[derive(Debug)]
pub enum Message {
    /// Bytes of the state, which count only if the whole is right.
    Piece {
        /// The first of them in the row of the state.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// All of them have been said.
    Whole,
    /// The checkpoint cannot be used.
    Damaged(Trouble),
}

/// Finds the newest checkpoint whose manifest is whole and whose files have their sizes, but for those that are
/// known to be damaged; `None` if there is none at all. The log names those that are passed over, with the reason.
///
/// # Errors
/// [`Failure::OtherTraining`] when the newest one's state does not fit, [`Failure::NoCheckpointUsable`]
/// when all are damaged: to begin again would be to throw them away. [`Failure::Volume`] when the directory, or one of the
/// checkpoints and none of the others, cannot be read: it may be whole.
pub fn find(
    directory: &Directory,
    training: &Identity,
    table: &Table,
) -> Result<Option<Manifest>, Failure> {
    let path = directory.checkpoints();
    let mut ids = directory.steady_list()?;
    loop {
        let (mut newest_reason, mut refusal) = (None, None);
        for id in &ids {
            let found = match known(directory, *id) {
                Some(reason) => Err(reason),
                None => look(directory, *id, training, table)?.inspect_err(|reason| {
                    say_error(&format!("a checkpoint is passed over: {reason}"));
                }),
            };
            match found {
                Ok(manifest) => return Ok(Some(manifest)),
                Err(reason) if reason.is_of_the_volume() => {
                    refusal.get_or_insert(reason);
                }
                Err(reason) => {
                    newest_reason.get_or_insert(reason);
                }
            }
        }
        if ids.is_empty() {
            return Ok(None);
        }
        // A world that trains on meanwhile replaces old checkpoints by new ones.
        let now = directory.steady_list()?;
        if now == ids {
            if let Some(refusal) = refusal {
                return Err(refusal.into());
            }
            let Some(reason) = newest_reason else {
                return Ok(None);
            };
            return Err(Failure::NoCheckpointUsable {
                path,
                number: ids.len(),
                reason,
            });
        }
        ids = now;
    }
}

/// What ranks have found out about a checkpoint.
fn known(directory: &Directory, id: CheckpointId) -> Option<Trouble> {
    let reason = match directory.damaged().of(id)? {
        Damage::Bytes => Reason::Damaged,
        Damage::Unread => Reason::Unread,
    };
    Some(Trouble::with(&directory.checkpoint(id))(reason))
}

/// Looks at one checkpoint; the inner error says why it cannot be used, by whatever training.
fn look(
    directory: &Directory,
    id: CheckpointId,
    training: &Identity,
    table: &Table,
) -> Result<Result<Manifest, Trouble>, Failure> {
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

/// Tries again while an error may pass. To pass over a checkpoint for it would lose the steps since the one before.
pub(crate) fn steadily<T>(mut attempt: impl FnMut() -> Result<T, Trouble>) -> Result<T, Trouble> {
    let mut end = None;
    loop {
        match attempt() {
            // To read a part may take longer than that.
            Err(trouble)
                if trouble.may_pass()
                    && Instant::now() < *end.get_or_insert_with(|| Instant::now() + PATIENCE) =>
            {
                std::thread::sleep(PAUSE);
            }
            result => return result,
        }
    }
}

/// The manifest of a checkpoint of whatever training, if it fits together, all files have their sizes, and no rank has
/// found its bytes to be damaged.
///
/// # Errors
/// Why it cannot be used.
pub fn usable(directory: &Directory, id: CheckpointId) -> Result<Manifest, Trouble> {
    steadily(|| usable_now(directory, id))
}

fn usable_now(directory: &Directory, id: CheckpointId) -> Result<Manifest, Trouble> {
    if let Some(reason) = known(directory, id) {
        return Err(reason);
    }
    let path = directory.checkpoint(id);
    let manifest = Manifest::read(&path)?;
    whole(&path, id, &manifest).map(|()| manifest)
}

/// The manifest of a checkpoint that retention counts; `None` if it is damaged, if a rank has read it in vain, or if there is
/// none. That a part cannot be opened for the moment says nothing of it.
///
/// # Errors
/// The manifest cannot be read, so that it is not known what is there.
pub fn counted(directory: &Directory, id: CheckpointId) -> Result<Option<Manifest>, Trouble> {
    let found = match usable_now(directory, id) {
        Err(trouble) if trouble.is_of_the_volume() && known(directory, id).is_none() => {
            Manifest::read(&directory.checkpoint(id))
        }
        found => found,
    };
    match found {
        Ok(manifest) => Ok(Some(manifest)),
        Err(trouble) if trouble.is_of_the_volume() && known(directory, id).is_none() => {
            Err(trouble)
        }
        Err(_) => Ok(None),
    }
}

fn whole(path: &Path, id: CheckpointId, manifest: &Manifest) -> Result<(), Trouble> {
    let has_size = |shard| complete::check_size(path, &manifest.tensors, shard);
    let is_whole = check(manifest, id).and_then(|()| manifest.shards.iter().try_for_each(has_size));
    is_whole.map_err(Trouble::with(path))
}

/// Reads a checkpoint in a thread, piece after piece. Each part's checksum is known when its last piece was sent, so
/// nothing counts as loaded before [`Message::Whole`]. The thread ends when the receiver is gone.
///
/// # Errors
/// The operating system refused the thread.
pub fn read(directory: &Directory, manifest: Manifest) -> Result<Receiver<Message>, Failure> {
    // One piece waits while the next one is read.
    let (pieces, said) = sync_channel(1);
    let directory = directory.clone();
    let work = move || {
        let path = directory.checkpoint(manifest.id());
        let mut begin = 0;
        for part in &manifest.shards {
            let mut offset = begin;
            let result = steadily(|| {
                // A part that is read again overwrites what it gave before.
                offset = begin;
                shard::read(&path, part, directory.pulse(), |bytes| {
                    let at = offset;
                    offset += bytes.len() as u64;
                    let sent = pieces.send(Message::Piece { offset: at, bytes });
                    sent.map_or(ControlFlow::Break(()), ControlFlow::Continue)
                })
            });
            begin = offset;
            match result {
                Ok(ControlFlow::Continue(())) => {}
                Ok(ControlFlow::Break(())) => return,
                Err(trouble) => {
                    let _ = pieces.send(Message::Damaged(trouble));
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
    Ok(said)
}

/// Whether what the manifest says fits together.
fn check(manifest: &Manifest, id: CheckpointId) -> Result<(), Reason> {
    if manifest.id() != id {
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
    if manifest.ledger.step != manifest.step || manifest.chain().head() != manifest.ledger {
        return Err(Reason::LedgerStep);
    }
    Ok(())
}
