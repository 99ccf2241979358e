//! The save of a process that leaves without peers. Its state may be in no other process, so all of it is written.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use roundhouse_contract::Phase;
use roundhouse_elastic::shard::shard;
use roundhouse_elastic::{CheckpointId, Origin};

use super::save::manifest;
use super::{Keeping, Saved};
use crate::checkpoint::manifest::Tail;
use crate::checkpoint::shard::Part;
use crate::checkpoint::{self, Manifest, News, Reason, Trouble, alone, complete};
use crate::failure::{Failure, Kept};
use crate::group::Rendezvous;
use crate::held::Held;
use crate::member::Member;
use crate::report::{Reporter, say, say_error};
use crate::state::State;

/// Why a state could not be saved.
#[derive(Debug, thiserror::Error)]
enum NotSaved {
    #[error(transparent)]
    Volume(#[from] Trouble),
    #[error(transparent)]
    Process(#[from] Failure),
}

impl<R: Rendezvous> Member<'_, R> {
    /// This process leaves, and no peer is known to have its state: all of it is saved, unless a checkpoint holds it.
    /// It is no collective. What keeps it from being saved is said in the process' last words.
    pub fn save_alone<S: State>(&mut self, state: &S) {
        self.leave.hold_on();
        if self.kept.is_some() {
            // It was saved with the others just now, or the volume has just refused it.
            return;
        }
        let kept = self.keep_alone(state);
        if let Kept::Nowhere(reason) = &kept {
            let step = self.held.position.step;
            say_error(&format!("step {step} is not saved: {reason}"));
        }
        self.kept = Some(kept);
    }

    fn keep_alone<S: State>(&mut self, state: &S) -> Kept {
        let head = self.held.chain.head();
        if head.step == 0 {
            return Kept::Untrained;
        }
        match self.held.claim().origin {
            Origin::Live => {}
            Origin::Loaded => return Kept::Checkpoint,
            Origin::Fresh | Origin::Torn => {
                return Kept::Nowhere("this process has no whole state".to_owned());
            }
        }
        let Some(keeping) = &mut self.keeping else {
            return Kept::Nowhere("there is no spec.checkpoint".to_owned());
        };
        keeping.leave();
        keeping.abandon_save();
        self.reporter.enter(Phase::Saving);
        let id = CheckpointId {
            generation: head.generation,
            step: head.step,
        };
        let started = Instant::now();
        match keeping.write_alone(id, &self.held, state, self.reporter) {
            Ok(None) => Kept::Checkpoint,
            Ok(Some(manifest)) => {
                say(&format!("saved without peers: {}", keeping.name(&manifest)));
                self.reporter.checkpoint(&News::Saved {
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
                self.reporter.checkpoint(&News::Failed(reason.clone()));
                Kept::Nowhere(reason)
            }
        }
    }
}

impl Keeping {
    /// `None`: a checkpoint holds this state, or a newer one.
    fn write_alone<S: State>(
        &self,
        id: CheckpointId,
        held: &Held,
        state: &S,
        reporter: &mut Reporter,
    ) -> Result<Option<Manifest>, NotSaved> {
        let directory = self.directory.clone();
        let begin = move || alone::begin(&directory, id);
        let Some(path) = self.ask(begin, reporter)?? else {
            return Ok(None);
        };
        let written = self.write_all(id, held, state, &path, reporter);
        if written.is_err() {
            let directory = self.directory.clone();
            let clean = move || {
                // What is left of it is removed with the next checkpoint.
                let _ = complete::remove(&path);
                alone::is_held(&directory, id)
            };
            // A newer world that has saved meanwhile removes what was not complete.
            if let Ok(Ok(true)) = self.ask(clean, reporter) {
                return Ok(None);
            }
        }
        written.map(Some)
    }

    fn write_all<S: State>(
        &self,
        id: CheckpointId,
        held: &Held,
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
            let mut snapshot = state.snapshot(range, former.take())?;
            let (table, pulse) = (Arc::clone(&table), self.directory.pulse().clone());
            let path: PathBuf = path.to_owned();
            let write = move || {
                let bytes = snapshot.bytes().map_err(|failure| {
                    Trouble::with(&path)(Reason::NotCopied(failure.to_string()))
                })?;
                let part = Part {
                    id,
                    rank: part,
                    world_size: num_parts,
                    table: &table,
                    bytes,
                    pulse: &pulse,
                };
                checkpoint::shard::write(&path, &part)?;
                Ok::<_, Trouble>(snapshot)
            };
            former = Some(self.ask(write, reporter)??);
        }
        let saved = Saved {
            ledger: held.chain.head(),
            position: held.position,
            scores: held.scores_of(id.step),
            is_best: false,
        };
        let tail = Tail {
            after: held.chain.durable(),
            lines: held.chain.lines().iter().copied().collect(),
        };
        let manifest = Manifest {
            tail: (!tail.lines.is_empty()).then_some(tail),
            ..manifest(id, &saved, num_parts, &self.identity, &self.table)
        };
        let (directory, path) = (self.directory.clone(), path.to_owned());
        let complete = move || complete::complete_from(&directory, &path, manifest);
        Ok(self.ask(complete, reporter)??)
    }
}
