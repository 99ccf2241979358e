//! Saves the state of a process that leaves without peers. No other process may have this state, so
//! all of it is written.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use roundhouse_contract::Phase;
use roundhouse_elastic::shard::shard;
use roundhouse_elastic::{CheckpointId, Origin};
use roundhouse_report::{CheckpointReport, Reporter, say, say_error};

use super::save::manifest;
use super::{Checkpointing, Saved};
use crate::checkpoint::manifest::Tail;
use crate::checkpoint::shard::{Part, records};
use crate::checkpoint::{self, Manifest, Reason, VolumeError, alone, complete};
use crate::failure::{Failure, Kept};
use crate::group::Rendezvous;
use crate::local_state::LocalState;
use crate::member::Member;
use crate::state::State;

/// Why a state could not be saved.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotSaved {
    #[error(transparent)]
    Volume(#[from] VolumeError),
    #[error(transparent)]
    Process(#[from] Failure),
}

impl<R: Rendezvous> Member<'_, R> {
    /// Saves the whole state of a leaving process, unless a checkpoint holds it. No peer is known
    /// to have the state. Not a collective. The process' last words report why a save failed.
    pub fn save_alone<S: State>(&mut self, state: &mut S) {
        self.leave.hold_on();
        if let Some(copies) = self.copies() {
            copies.set_member(true);
        }
        if let Err(failure) = self.restore_copy(state) {
            say_error(&failure.to_string());
        }
        if self.kept.is_some() {
            // The state was just saved with the other ranks, or the volume has just refused it.
            return;
        }
        let kept = self.keep_alone(state);
        if let Kept::Nowhere(reason) = &kept {
            let step = self.local_state.position.step;
            say_error(&format!("step {step} is not saved: {reason}"));
        }
        self.kept = Some(kept);
    }

    fn keep_alone<S: State>(&mut self, state: &S) -> Kept {
        let head = self.local_state.chain.head();
        if head.step == 0 {
            return Kept::Untrained;
        }
        match self.local_state.claim().origin {
            Origin::Held | Origin::Live => {}
            Origin::Loaded => return Kept::Checkpoint,
            Origin::Fresh | Origin::Torn => {
                return Kept::Nowhere("this process has no whole state".to_owned());
            }
        }
        let Some(checkpointing) = &mut self.checkpointing else {
            return Kept::Nowhere("spec.checkpoint is not set".to_owned());
        };
        checkpointing.leave();
        checkpointing.abandon_save();
        self.reporter.enter(Phase::Saving);
        let id = CheckpointId {
            generation: head.generation,
            step: head.step,
        };
        let started = Instant::now();
        match checkpointing.write_alone(id, &self.local_state, state, self.reporter) {
            Ok(None) => Kept::Checkpoint,
            Ok(Some(manifest)) => {
                say(&format!(
                    "saved without peers: {}",
                    checkpointing.name(&manifest)
                ));
                self.reporter.checkpoint(&CheckpointReport::Saved {
                    step: manifest.step,
                    at: manifest.saved_at,
                    bytes: manifest.tensors.num_bytes(),
                    duration: started.elapsed(),
                    best: None,
                });
                Kept::Checkpoint
            }
            Err(reason) => {
                let reason = reason.to_string();
                self.reporter
                    .checkpoint(&CheckpointReport::Failed(reason.clone()));
                Kept::Nowhere(reason)
            }
        }
    }
}

impl Checkpointing {
    /// Writes the checkpoint. `None`: a checkpoint holds this state or a newer one.
    fn write_alone<S: State>(
        &self,
        id: CheckpointId,
        local_state: &LocalState,
        state: &S,
        reporter: &mut Reporter,
    ) -> Result<Option<Manifest>, NotSaved> {
        if let Some(layout) = state.layout() {
            return self.write_with_siblings(id, local_state, state, layout, reporter);
        }
        let directory = self.directory.clone();
        let begin = move || alone::begin(&directory, id);
        let Some(path) = self.ask(begin, reporter)?? else {
            return Ok(None);
        };
        let written = self.write_all(id, local_state, state, &path, reporter);
        if written.is_err() {
            let directory = self.directory.clone();
            let clean = move || {
                // The next completed checkpoint removes what remains.
                let _ = complete::remove(&path);
                alone::is_held(&directory, id)
            };
            // A newer generation that has saved meanwhile removes incomplete checkpoints.
            if let Ok(Ok(true)) = self.ask(clean, reporter) {
                return Ok(None);
            }
        }
        written.map(Some)
    }

    fn write_all<S: State>(
        &self,
        id: CheckpointId,
        local_state: &LocalState,
        state: &S,
        path: &Path,
        reporter: &mut Reporter,
    ) -> Result<Manifest, NotSaved> {
        let num_bytes = self.table.num_bytes();
        let num_parts = alone::num_parts(num_bytes);
        let table = Arc::new(self.table.clone());
        let mut former = None;
        for part in 0..num_parts {
            let range = shard(&(0..num_bytes), part, num_parts);
            let pieces = records(&table, part, num_parts);
            let mut snapshot = state.snapshot(range, former.take())?;
            let (table, io_watch) = (Arc::clone(&table), self.directory.io_watch().clone());
            let path: PathBuf = path.to_owned();
            let write = move || {
                let bytes = snapshot.bytes().map_err(|failure| {
                    VolumeError::with(&path)(Reason::NotCopied(failure.to_string()))
                })?;
                let part = Part {
                    id,
                    rank: part,
                    world_size: num_parts,
                    table: &table,
                    pieces: &pieces,
                    bytes,
                    io_watch: &io_watch,
                };
                checkpoint::shard::write(&path, &part)?;
                Ok::<_, VolumeError>(snapshot)
            };
            former = Some(self.ask(write, reporter)??);
        }
        let manifest = self.manifest_alone(id, local_state, num_parts);
        let (directory, path) = (self.directory.clone(), path.to_owned());
        let complete = move || complete::complete_from(&directory, &path, manifest);
        Ok(self.ask(complete, reporter)??)
    }

    /// The manifest of a checkpoint that is written without rank 0, which writes the ledger.
    pub(super) fn manifest_alone(
        &self,
        id: CheckpointId,
        local_state: &LocalState,
        num_parts: u32,
    ) -> Manifest {
        let saved = Saved {
            ledger: local_state.chain.head(),
            position: local_state.position,
            scores: local_state.scores_of(id.step),
            is_best: false,
        };
        let tail = Tail {
            after: local_state.chain.durable(),
            lines: local_state.chain.lines().iter().copied().collect(),
        };
        Manifest {
            tail: (!tail.lines.is_empty()).then_some(tail),
            ..manifest(id, &saved, num_parts, &self.identity, &self.table)
        }
    }
}
