//! Checkpoints and ledger in the loop: what each step's end adds to them and takes from them.

use roundhouse_elastic::ledger::Terms;
use roundhouse_elastic::saving::{self, Decision};
use roundhouse_elastic::{Batch, CheckpointId, Origin, Place};

use super::{Trainer, terms_of};
use crate::checkpoint::manifest::SCHEMA_VERSION;
use crate::checkpoint::{Manifest, NamedTensors};
use crate::failure::Failure;
use crate::ledger::Ledger;
use crate::strategy::DataParallel;
use crate::world::{Saving, SavingSum, World};

impl Trainer<'_> {
    /// The state is agreed on: rank 0 begins the generation's ledger. `origin` is where the state that
    /// all have now came from.
    pub(super) fn open_ledger(&mut self, place: &Place, origin: Origin) -> Result<(), Failure> {
        let (terms, generation) = (self.terms(), self.generation);
        let Some(keeping) = &mut self.keeping else {
            return Ok(());
        };
        let saved_step = (origin == Origin::Loaded).then_some(self.mark.step);
        keeping.saver.enter(generation, place.rank, saved_step);
        keeping.ledger = (place.rank == 0)
            .then(|| Ledger::open(&keeping.directory, generation, terms, &self.chain))
            .transpose()?;
        Ok(())
    }

    pub(super) fn terms(&self) -> Terms {
        terms_of(&self.config, &self.course)
    }

    /// What this rank brings to a step's end.
    pub(super) fn saving(&mut self) -> Result<Saving, Failure> {
        let Some(keeping) = &mut self.keeping else {
            return Ok(Saving::default());
        };
        keeping.hear(self.generation, self.reporter)?;
        let is_time = keeping.saver.is_time();
        Ok(keeping.standing(is_time))
    }

    /// The step of `batch` is committed: its line joins the ledger, and saves go on.
    pub(super) fn keep(
        &mut self,
        batch: &Batch,
        loss: f64,
        sum: &SavingSum,
    ) -> Result<(), Failure> {
        let line = self.chain.head().next(batch, self.generation, loss);
        self.chain.push(line);
        let Some(keeping) = &mut self.keeping else {
            // Nobody will ever write it.
            self.chain.forget_through(batch.step);
            return Ok(());
        };
        if let Some(ledger) = &keeping.ledger {
            ledger.append(line);
        }
        self.chain.forget_through(sum.durable_line);
        let is_due = sum.is_time || saving::is_due_at(batch.step, keeping.every_steps);
        self.proceed(sum, is_due)?;
        self.tell_delay(sum)
    }

    /// Does what all ranks conclude from a sum.
    pub(super) fn proceed(&mut self, sum: &SavingSum, is_due: bool) -> Result<(), Failure> {
        let world = self.world()?;
        let (rank, world_size) = (world.rank(), world.size());
        let id = CheckpointId {
            generation: self.generation,
            step: self.mark.step,
        };
        match saving::decide(&sum.stages, u64::from(world_size), is_due) {
            Decision::None => Ok(()),
            Decision::Begin => self.begin(id, rank, world_size),
            Decision::Skip => {
                self.skip();
                Ok(())
            }
            Decision::Complete => {
                self.complete(rank, world_size);
                Ok(())
            }
            Decision::GiveUp(num_failed) => {
                let keeping = self.keeping.as_mut();
                if !keeping.is_some_and(|keeping| keeping.saver.give_up(rank)) {
                    self.reporter.checkpoint_given_up(num_failed, world_size);
                }
                Ok(())
            }
        }
    }

    fn begin(&mut self, id: CheckpointId, rank: u32, world_size: u32) -> Result<(), Failure> {
        let state = NamedTensors::of(self.model.parameters(), self.optimizer.as_ref());
        let head = self.chain.head();
        let Some(keeping) = &mut self.keeping else {
            return Ok(());
        };
        self.saved = (head, self.mark);
        let started = std::time::Instant::now();
        keeping.saver.begin(id, rank, world_size, &state)?;
        self.reporter.checkpoint_begun(started.elapsed());
        Ok(())
    }

    fn skip(&mut self) {
        if let Some(keeping) = &mut self.keeping {
            keeping.saver.skip();
        }
        self.reporter.checkpoint_skipped();
    }

    fn complete(&mut self, rank: u32, world_size: u32) {
        let (course, (head, mark)) = (self.course, self.saved);
        let pace = self.scaling.is_on().then_some(mark.pace);
        let Some(keeping) = &mut self.keeping else {
            return;
        };
        let ledger = keeping.ledger.as_ref().map(Ledger::progress);
        let (identity, table) = (&keeping.identity, keeping.saver.table().clone());
        let manifest = |id: CheckpointId| {
            let position = course.position_at(mark.samples);
            Some((
                Manifest {
                    schema_version: SCHEMA_VERSION,
                    saved_at: now(),
                    generation: id.generation,
                    step: id.step,
                    epoch: position.epoch,
                    cursor: position.cursor,
                    pace,
                    world_size,
                    training: identity.clone(),
                    config_hash: identity.hash(&table),
                    ledger: head,
                    tensors: table,
                    shards: Vec::new(),
                },
                ledger.filter(|_| rank == 0)?,
            ))
        };
        keeping.saver.complete(manifest);
    }

    pub(super) fn world(&self) -> Result<&World, Failure> {
        let world = self.replicas.as_ref().map(DataParallel::world);
        world.ok_or_else(|| Failure::Internal("no world was formed".to_owned()))
    }
}

/// The time, RFC 3339, in whole seconds.
fn now() -> String {
    let now = jiff::Timestamp::now();
    let rounded = now.round(jiff::Unit::Second);
    rounded.unwrap_or(now).to_string()
}
