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
            match checkpoint::shard::write(&path, &part) {
                Ok(()) => finish(&directory, &path, shard, manifest),
                Err(error) => unless_held(&directory, id, error),
            }
        };
        Ok(self.ask(work, reporter)??)
    }
}

/// Waits for the parts of all siblings and completes the checkpoint, or waits until the first
/// sibling has done so. If a sibling stays away, completing fails and names its part. `None`: a
/// checkpoint holds this state or a newer one.
fn finish(
    directory: &Directory,
    path: &Path,
    shard: u32,
    manifest: Manifest,
) -> Result<Option<Manifest>, VolumeError> {
    let (id, num_shards) = (manifest.id(), manifest.world_size);
    let names: Vec<_> = (0..num_shards)
        .map(|shard| path.join(record_name(shard, num_shards)))
        .collect();
    let is_incomplete = || shard > 0 || names.iter().any(|name| !name.exists());
    // Another replica may have saved the same state. Siblings that start later find its checkpoint,
    // and write no part.
    let is_needed = || !alone::is_held(directory, id).unwrap_or(false);
    alone::while_it_grows(directory, path, LONGEST_PAUSE, || {
        is_incomplete() && is_needed()
    });
    let completed = if shard == 0 {
        complete::complete_from(directory, path, manifest).map(Some)
    } else {
        let reason = checkpoint::Reason::NotShared(record_name(0, 1));
        Err(VolumeError::with(path)(reason))
    };
    completed.or_else(|error| unless_held(directory, id, error))
}

/// The error of a save, unless a checkpoint holds its state. A newer generation that has saved
/// meanwhile removes incomplete checkpoints.
fn unless_held(
    directory: &Directory,
    id: CheckpointId,
    error: VolumeError,
) -> Result<Option<Manifest>, VolumeError> {
    if alone::is_held(directory, id)? {
        return Ok(None);
    }
    Err(error)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::checkpoint::complete::tests::{manifest_of, write_part};

    const ID: CheckpointId = CheckpointId {
        generation: 3,
        step: 40,
    };

    /// The volume of a job, whose replica 0 of one process has saved the state.
    fn saved_by_another() -> (tempfile::TempDir, Directory) {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::new(root.path().to_owned());
        let first = directory.alone(ID, FIRST_OF_REPLICAS);
        write_part(&first, &manifest_of(ID));
        let saved = finish(&directory, &first, 0, manifest_of(ID)).unwrap();
        assert!(saved.is_some());
        (root, directory)
    }

    fn of_two_processes() -> Manifest {
        Manifest {
            world_size: 2,
            ..manifest_of(ID)
        }
    }

    #[test]
    fn replica_waits_for_no_part_of_a_saved_state() {
        let (_root, directory) = saved_by_another();
        let second = directory.alone(ID, FIRST_OF_REPLICAS | 1);
        for shard in [0, 1] {
            std::fs::create_dir_all(&second).unwrap();
            let begun = Instant::now();
            let saved = finish(&directory, &second, shard, of_two_processes()).unwrap();
            assert!(saved.is_none());
            assert!(begun.elapsed() < LONGEST_PAUSE / 2);
        }
    }

    #[test]
    fn removed_directory_is_no_failure_if_the_state_is_saved() {
        let (_root, directory) = saved_by_another();
        let second = directory.alone(ID, FIRST_OF_REPLICAS | 1);
        for shard in [0, 1] {
            let saved = finish(&directory, &second, shard, of_two_processes()).unwrap();
            assert!(saved.is_none());
        }
        let newer = CheckpointId { step: 41, ..ID };
        let manifest = manifest_of(newer);
        let lost = finish(&directory, &second, 0, manifest).unwrap_err();
        assert!(lost.to_string().contains("is not here"), "{lost}");
    }
}
