//! Saves the state of a replica whose processes leave without peers. Each process writes its part,
//! and the first one completes the checkpoint when it sees the parts of all.
//!
//! The processes leave at the same time, and have no group for it: they may have lost different
//! peers. So they meet in the directory, whose name follows from the life of the replica.

use std::path::Path;
use std::time::Duration;

use roundhouse_elastic::CheckpointId;
use roundhouse_elastic::state::Layout;
use roundhouse_report::Reporter;

use super::Checkpointing;
use super::alone::NotSaved;
use crate::checkpoint::saver::part_of;
use crate::checkpoint::shard::{Part, record_name};
use crate::checkpoint::{self, Directory, Manifest, VolumeError, alone, complete};
use crate::local_state::LocalState;
use crate::state::State;

/// A sibling whose files have not grown for this long is assumed to have ended. It computes the
/// checksum of its part before it writes.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// Set in the number of a replica's directory. A process that writes a whole checkpoint alone
/// counts its attempts from 1, so the names differ.
const FIRST_OF_REPLICAS: u32 = 1 << 31;

impl Checkpointing {
    /// Writes this process' part, and waits until the checkpoint is complete. `None`: a checkpoint
    /// holds this state or a newer one.
    pub(super) fn write_with_siblings<S: State>(
        &self,
        id: CheckpointId,
        local_state: &LocalState,
        state: &S,
        layout: &Layout,
        reporter: &mut Reporter,
    ) -> Result<Option<Manifest>, NotSaved> {
        let directory = self.directory.clone();
        let is_held = move || alone::is_held(&directory, id);
        if self.ask(is_held, reporter)?? {
            return Ok(None);
        }
        let (shard, num_shards) = (layout.shard(), layout.num_shards());
        let path = self
            .directory
            .alone(id, FIRST_OF_REPLICAS | layout.replica());
        let (own, pieces) = part_of(state, &self.table, shard, num_shards);
        let mut snapshot = state.snapshot(own, None)?;
        let manifest = self.manifest_alone(id, local_state, num_shards);
        let (directory, table) = (self.directory.clone(), self.table.clone());
        let work = move || {
            let bytes = snapshot.bytes().map_err(|failure| {
                let reason = checkpoint::Reason::NotCopied(failure.to_string());
                VolumeError::with(&path)(reason)
            })?;
            let part = Part {
                id,
                rank: shard,
                world_size: num_shards,
                table: &table,
                pieces: &pieces,
                bytes,
                io_watch: directory.io_watch(),
            };
            checkpoint::shard::write(&path, &part)?;
            if shard > 0 {
                return wait_for_the_first(&directory, &path, id);
            }
            wait_for_all(&directory, &path, num_shards);
            complete::complete_from(&directory, &path, manifest).map(Some)
        };
        Ok(self.ask(work, reporter)??)
    }
}

/// Waits until the parts of all siblings are durable. If one stays away, completing fails and names
/// its part.
fn wait_for_all(directory: &Directory, path: &Path, num_shards: u32) {
    let names: Vec<_> = (0..num_shards)
        .map(|shard| path.join(record_name(shard, num_shards)))
        .collect();
    alone::while_it_grows(directory, path, LONGEST_PAUSE, || {
        names.iter().any(|name| !name.exists())
    });
}

/// Waits until the first sibling has completed the checkpoint.
fn wait_for_the_first(
    directory: &Directory,
    path: &Path,
    id: CheckpointId,
) -> Result<Option<Manifest>, VolumeError> {
    alone::while_it_grows(directory, path, LONGEST_PAUSE, || true);
    if alone::is_held(directory, id)? {
        return Ok(None);
    }
    let reason = checkpoint::Reason::NotShared(record_name(0, 1));
    Err(VolumeError::with(path)(reason))
}
