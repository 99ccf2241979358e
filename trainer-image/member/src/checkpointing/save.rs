//! Checkpoints and ledger during training: the work of each step's end.

use std::time::Instant;

use roundhouse_elastic::ledger::Line;
use roundhouse_elastic::saving::{self, Carried, Decision};
use roundhouse_elastic::{Batch, CheckpointId, Origin, Place};

use super::{Checkpointing, Saved};
use crate::checkpoint::Manifest;
use crate::checkpoint::manifest::SCHEMA_VERSION;
use crate::failure::Failure;
use crate::faults::{self, Point};
use crate::group::Rendezvous;
use crate::ledger::{Ledger, Opening};
use crate::local_state::LocalState;
use crate::member::Member;
use crate::replicas;
use crate::state::State;
use crate::world::SavingSum;

impl<R: Rendezvous> Member<'_, R> {
    /// Begins the generation's ledger on rank 0 once the ranks have the same state. `origin` is
    /// where that state came from.
    pub(crate) fn open_ledger(&mut self, place: &Place, origin: Origin) -> Result<(), Failure> {
        let generation = self.local_state.generation();
        let Some(checkpointing) = &mut self.checkpointing else {
            return Ok(());
        };
        let saved_step = (origin == Origin::Loaded).then_some(self.local_state.position.step);
        checkpointing
            .saver
            .enter(generation, place.rank, saved_step);
        let (directory, identity) = (&checkpointing.directory, &checkpointing.identity.ledger);
        let opening = Opening {
            generation,
            first_generation: checkpointing.first_generation,
            source: checkpointing.source,
        };
        checkpointing.ledger = (place.rank == 0)
            .then(|| Ledger::open(directory, opening, identity, &self.local_state.chain))
            .transpose()?;
        Ok(())
    }

    /// Counts the step of `batch`, which all ranks have agreed to commit. This rank has updated its
    /// weights, unless the step `is_skipped`.
    pub fn count(&mut self, batch: &Batch, is_skipped: bool) {
        let position = &mut self.local_state.position;
        *position = position.after(batch.num_samples());
        position.skips = position.skips.after(is_skipped);
    }

    /// Adds the step's line to the ledger, after [`Self::count`]. `loss` is the mean over the
    /// batch.
    pub fn note(&mut self, batch: &Batch, loss: f64, sum: &SavingSum) {
        self.conclude_copy(sum);
        let line = self.next_line(batch, loss);
        let chain = &mut self.local_state.chain;
        chain.push(line);
        let Some(checkpointing) = &mut self.checkpointing else {
            // Without a directory no line is written.
            chain.forget_through(batch.step);
            return;
        };
        if let Some(ledger) = &checkpointing.ledger {
            ledger.append(line);
        }
        checkpointing.has_committed = true;
        chain.forget_through(sum.durable_line);
    }

    /// As [`Self::note`], for a step in doubt, whose line is not written now. The next life of the
    /// replica writes it if it continues from this step.
    pub fn note_in_doubt(&mut self, batch: &Batch, loss: f64) {
        let line = self.next_line(batch, loss);
        self.local_state.chain.push(line);
    }

    fn next_line(&self, batch: &Batch, loss: f64) -> Line {
        let LocalState {
            position, chain, ..
        } = &self.local_state;
        let generation = self.local_state.generation();
        if position.skips.in_a_row > 0 {
            chain.head().next_skipped(batch, generation, loss)
        } else {
            chain.head().next(batch, generation, loss)
        }
    }

    /// Whether a checkpoint or a local copy is due after this step by the number of steps. The
    /// state of the step must then be read before the next one changes it.
    #[must_use]
    pub fn reads_state_at(&self, step: u64) -> bool {
        let copies = self.copies();
        self.saves_at(step) || copies.is_some_and(|copies| copies.is_due_at(step))
    }

    /// Whether a checkpoint is due after this step by the number of steps.
    fn saves_at(&self, step: u64) -> bool {
        let checkpointing = self.checkpointing.as_ref();
        checkpointing
            .is_some_and(|checkpointing| saving::is_due_at(step, checkpointing.every_steps))
    }

    /// Whether [`Self::save_on`] needs the state of this step.
    ///
    /// # Errors
    /// [`Failure::Internal`] outside of a generation, which is a defect of the caller.
    pub fn has_to_save(&self, sum: &SavingSum) -> Result<bool, Failure> {
        let is_due = sum.is_time || self.saves_at(self.local_state.position.step);
        let world_size = u64::from(self.world()?.size());
        let decision = saving::decide(&sum.stages, world_size, is_due);
        Ok(self.checkpointing.is_some() && (decision != Decision::None || self.copies_now(sum)))
    }

    /// Begins and continues saves, after [`Self::note`]. `state` is that of the last committed
    /// step.
    ///
    /// # Errors
    /// [`Failure::State`] if the state cannot be copied.
    pub fn save_on<S: State>(&mut self, sum: &SavingSum, state: &S) -> Result<(), Failure> {
        let is_due = sum.is_time || self.saves_at(self.local_state.position.step);
        self.proceed(sum, is_due, state)?;
        self.copy_locally(sum, state)?;
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
    /// Compares the ranks' states. A checkpoint has a part of each rank's state, so a save begins
    /// only if all are equal.
    fn compare_replicas<S: State>(&mut self, state: &S) -> Result<(), Failure> {
        let checkpointing = self.checkpointing.as_ref();
        if !checkpointing.is_some_and(|it| it.compares_replicas) {
            return Ok(());
        }
        let world = self.world()?;
        let step = self.local_state.position.step;
        if let Some(difference) = replicas::compare(world, state, step)? {
            let failure = state.differs(difference, world.rank());
            let is_suspect = !matches!(failure, Failure::PeerLost(_));
            if let Some(copies) = self.copies_mut().filter(|_| is_suspect) {
                copies.discard(state.layout());
            }
            return Err(failure);
        }
        faults::lose(Point::Compare, world.rank(), step)
    }
}

impl Checkpointing {
    /// Continues a save of an earlier generation, or abandons it.
    pub(crate) fn continue_save(&mut self, continued: Option<Carried>) {
        match continued {
            Some(save) if self.saver.continue_with(save) => {}
            Some(_) => self.saved = None,
            None => self.abandon_save(),
        }
    }

    /// Abandons the save of an earlier generation.
    pub(crate) fn abandon_save(&mut self) {
        let abandoned = self.saver.abandon();
        if abandoned.is_some() && self.saved.is_some_and(|saved| saved.is_best) {
            self.unsaved_best = abandoned;
        }
        self.saved = None;
    }

    /// On rank 0, completes the save whose parts are all durable, in this generation.
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

/// Builds the manifest without its parts.
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
    let num_samples = identity.ledger.num_samples.max(1);
    let follows_workers = identity.ledger.reference_replicas.is_some();
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

/// The current time, RFC 3339, in whole seconds.
fn now() -> String {
    let now = jiff::Timestamp::now();
    let rounded = now.round(jiff::Unit::Second);
    rounded.unwrap_or(now).to_string()
}
