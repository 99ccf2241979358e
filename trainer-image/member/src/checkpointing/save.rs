//! Checkpoints and ledger beside the steps: what each step's end adds to them and takes from them.

use std::time::Instant;

use roundhouse_elastic::saving::{self, Carried, Decision};
use roundhouse_elastic::{Batch, CheckpointId, Origin, Place};

use super::{Checkpointing, Saved};
use crate::checkpoint::Manifest;
use crate::checkpoint::manifest::SCHEMA_VERSION;
use crate::failure::Failure;
use crate::group::Rendezvous;
use crate::ledger::{Ledger, Opening};
use crate::member::Member;
use crate::replicas;
use crate::state::State;
use crate::world::SavingSum;

impl<R: Rendezvous> Member<'_, R> {
    /// The state is agreed on: rank 0 begins the generation's ledger. `origin` is where the state that
    /// all have now came from.
    pub(crate) fn open_ledger(&mut self, place: &Place, origin: Origin) -> Result<(), Failure> {
        let generation = self.local_state.generation();
        let Some(checkpointing) = &mut self.checkpointing else {
            return Ok(());
        };
        let saved_step = (origin == Origin::Loaded).then_some(self.local_state.position.step);
        checkpointing
            .saver
            .enter(generation, place.rank, saved_step);
        let (directory, run) = (&checkpointing.directory, checkpointing.identity.run);
        let opening = Opening {
            generation,
            first_generation: checkpointing.first_generation,
            source: checkpointing.source,
        };
        checkpointing.ledger = (place.rank == 0)
            .then(|| Ledger::open(directory, opening, &run, &self.local_state.chain))
            .transpose()?;
        Ok(())
    }

    /// All ranks have agreed to commit the step of `batch`, and this one has updated its weights, unless the step
    /// `is_skipped`: the step counts.
    pub fn count(&mut self, batch: &Batch, is_skipped: bool) {
        let position = &mut self.local_state.position;
        *position = position.after(batch.num_samples());
        position.skips = position.skips.after(is_skipped);
    }

    /// After [`Self::count`]: the step's line joins the ledger. `loss` is the mean over the batch.
    pub fn note(&mut self, batch: &Batch, loss: f64, sum: &SavingSum) {
        let generation = self.local_state.generation();
        let is_skipped = self.local_state.position.skips.in_a_row > 0;
        let chain = &mut self.local_state.chain;
        let line = if is_skipped {
            chain.head().next_skipped(batch, generation, loss)
        } else {
            chain.head().next(batch, generation, loss)
        };
        chain.push(line);
        let Some(checkpointing) = &mut self.checkpointing else {
            // Nobody will ever write it.
            chain.forget_through(batch.step);
            return;
        };
        if let Some(ledger) = &checkpointing.ledger {
            ledger.append(line);
        }
        checkpointing.has_committed = true;
        chain.forget_through(sum.durable_line);
    }

    /// Whether a save is due after this step, however long training has taken.
    #[must_use]
    pub fn saves_at(&self, step: u64) -> bool {
        let checkpointing = self.checkpointing.as_ref();
        checkpointing
            .is_some_and(|checkpointing| saving::is_due_at(step, checkpointing.every_steps))
    }

    /// Whether a step's end has something to do for [`Self::save_on`] that needs the state of that step.
    ///
    /// # Errors
    /// There are none: a defect of the caller.
    pub fn has_to_save(&self, sum: &SavingSum) -> Result<bool, Failure> {
        let is_due = sum.is_time || self.saves_at(self.local_state.position.step);
        let world_size = u64::from(self.world()?.size());
        let decision = saving::decide(&sum.stages, world_size, is_due);
        Ok(self.checkpointing.is_some() && decision != Decision::None)
    }

    /// After [`Self::note`]: saves begin and continue. `state` is that of the last committed step.
    ///
    /// # Errors
    /// [`Failure::State`] when the state cannot be copied.
    pub fn save_on<S: State>(&mut self, sum: &SavingSum, state: &S) -> Result<(), Failure> {
        let is_due = sum.is_time || self.saves_at(self.local_state.position.step);
        self.proceed(sum, is_due, state)?;
        self.report_delay(sum)
    }

    /// Does what all ranks conclude from a sum.
    pub(super) fn proceed<S: State>(
        &mut self,
        sum: &SavingSum,
        is_due: bool,
        state: &S,
    ) -> Result<(), Failure> {
        let world = self.world()?;
        let (rank, world_size) = (world.rank(), world.size());
        let decision = saving::decide(&sum.stages, u64::from(world_size), is_due);
        if decision == Decision::Begin {
            self.compare_replicas(state)?;
        }
        let writer = self.local_state.generation();
        let Some(checkpointing) = &mut self.checkpointing else {
            return Ok(());
        };
        match decision {
            Decision::None => {}
            Decision::Begin => {
                let ledger = self.local_state.chain.head();
                let id = CheckpointId::of(&ledger);
                checkpointing.saved = Some(Saved {
                    ledger,
                    position: self.local_state.position,
                    scores: self.local_state.scores_of(id.step),
                    is_best: false,
                });
                let started = Instant::now();
                checkpointing
                    .saver
                    .begin(&ledger, writer, rank, world_size, state)?;
                self.reporter.checkpoint_begun(started.elapsed());
            }
            Decision::Skip => {
                checkpointing.saver.skip();
                self.reporter.checkpoint_skipped();
            }
            Decision::Complete => {
                checkpointing.saver.all_parts_are_durable(rank == 0);
                checkpointing.complete(writer);
            }
            Decision::GiveUp(num_failed) => {
                if !checkpointing.saver.give_up(rank) {
                    self.reporter.checkpoint_given_up(num_failed, world_size);
                }
            }
        }
        Ok(())
    }
}

impl<R: Rendezvous> Member<'_, R> {
    /// A checkpoint has a part of each rank's state, so a save begins only if all have the same.
    fn compare_replicas<S: State>(&self, state: &S) -> Result<(), Failure> {
        if !self
            .checkpointing
            .as_ref()
            .is_some_and(|it| it.compares_replicas)
        {
            return Ok(());
        }
        let world = self.world()?;
        match replicas::compare(world, state, self.local_state.position.step)? {
            None => Ok(()),
            Some(difference) => Err(state.differs(difference, world.rank())),
        }
    }
}

impl Checkpointing {
    /// A generation forms, and continues this save of an earlier one.
    pub(crate) fn continue_save(&mut self, continued: Option<Carried>) {
        match continued {
            Some(save) if self.saver.continue_with(save) => {}
            Some(_) => self.saved = None,
            None => self.abandon_save(),
        }
    }

    /// This rank completes no save of an earlier generation.
    pub(crate) fn abandon_save(&mut self) {
        let abandoned = self.saver.abandon();
        if abandoned.is_some() && self.saved.is_some_and(|saved| saved.is_best) {
            self.unsaved_best = abandoned;
        }
        self.saved = None;
    }

    /// Rank 0 completes the save whose parts are all durable, in this generation.
    pub(super) fn complete(&mut self, generation: u64) {
        let Self {
            saver,
            ledger,
            saved,
            identity,
            table,
            ..
        } = self;
        let Some((saved, ledger)) = saved.as_ref().zip(ledger.as_ref()) else {
            return;
        };
        saver.complete(generation, ledger.progress(), |id, num_parts| {
            manifest(id, saved, num_parts, identity, table)
        });
    }
}

/// Lacks the parts.
pub(super) fn manifest(
    id: CheckpointId,
    saved: &Saved,
    world_size: u32,
    identity: &crate::checkpoint::Identity,
    table: &crate::state::Table,
) -> Manifest {
    let Saved {
        ledger,
        position,
        scores,
        is_best: _,
    } = *saved;
    let num_samples = identity.run.num_samples.max(1);
    let follows_workers = identity.run.reference_replicas.is_some();
    Manifest {
        schema_version: SCHEMA_VERSION,
        saved_at: now(),
        generation: id.generation,
        step: id.step,
        epoch: position.samples / num_samples,
        cursor: position.samples % num_samples,
        pace: follows_workers.then_some(position.pace),
        skips: position.skips,
        loss_scale: position.loss_scale,
        scores,
        world_size,
        training: identity.clone(),
        config_hash: identity.hash(table),
        ledger,
        tail: None,
        tensors: table.clone(),
        shards: Vec::new(),
    }
}

/// The time, RFC 3339, in whole seconds.
fn now() -> String {
    let now = jiff::Timestamp::now();
    let rounded = now.round(jiff::Unit::Second);
    rounded.unwrap_or(now).to_string()
}
