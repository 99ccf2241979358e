//! Checkpoints and ledger in the loop: what each step's end adds to them and takes from them.

use std::time::Duration;

use roundhouse_contract::environment::CheckpointEnvironment;
use roundhouse_elastic::ledger::Terms;
use roundhouse_elastic::saving::{self, Decision};
use roundhouse_elastic::{Batch, CheckpointId, Origin, Place};

use super::{Trainer, terms_of};
use crate::checkpoint::manifest::SCHEMA_VERSION;
use crate::checkpoint::{self, Directory, Identity, Manifest, NamedTensors, News, Saver};
use crate::failure::Failure;
use crate::ledger::Ledger;
use crate::report::{Reporter, say};
use crate::strategy::DataParallel;
use crate::world::{Saving, SavingSum, World};

/// How often the ranks ask each other how far they are when training waits for a save.
const PAUSE: Duration = Duration::from_millis(10);
/// A save that takes longer than this while the next one is due is worth telling.
const SLOW: Duration = Duration::from_mins(1);

/// What a process with a checkpoint directory has.
#[derive(Debug)]
pub(super) struct Keeping {
    settings: CheckpointEnvironment,
    directory: Directory,
    identity: Identity,
    saver: Saver,
    ledger: Option<Ledger>,
    /// Added to the job's generations.
    first_generation: u64,
}

impl Keeping {
    /// Starts saving, and loads the newest checkpoint into `state` if there is one.
    pub(super) fn start(
        settings: CheckpointEnvironment,
        identity: Identity,
        state: &mut NamedTensors,
    ) -> Result<(Self, Option<Manifest>), Failure> {
        let directory = Directory::new(settings.dir.clone());
        let first_generation =
            checkpoint::job::first_generation(&directory, settings.job_uid.as_deref());
        let table = state.table()?;
        let loaded = checkpoint::load::newest(&directory, &identity, &table)?;
        let manifest = match loaded {
            None => None,
            Some(loaded) => {
                state.copy_in(&loaded.bytes)?;
                say(&format!(
                    "loaded checkpoint {}: step {} of generation {}",
                    directory.checkpoint(loaded.id).display(),
                    loaded.id.step,
                    loaded.id.generation
                ));
                Some(loaded.manifest)
            }
        };
        let saver = Saver::start(&settings, table)?;
        let keeping = Self {
            settings,
            directory,
            identity,
            saver,
            ledger: None,
            first_generation,
        };
        Ok((keeping, manifest))
    }

    /// The generation is over.
    pub(super) fn leave(&mut self) {
        self.saver.abandon();
        self.ledger = None;
    }

    /// What this rank has to say at a step's end.
    fn standing(&self, is_time: bool) -> Saving {
        Saving {
            stage: self.saver.stage(),
            is_time,
            durable_line: self.ledger.as_ref().map_or(0, Ledger::durable),
        }
    }

    /// Reports what has happened; a newer generation ends the process.
    fn hear(&mut self, generation: u64, reporter: &mut Reporter) -> Result<(), Failure> {
        let mut newer = self.ledger.as_ref().and_then(Ledger::fenced);
        for news in self.saver.poll() {
            match news {
                News::Fenced(found) => newer = Some(found),
                news => reporter.checkpoint(&news),
            }
        }
        reporter.ledger(self.ledger.as_ref().and_then(Ledger::error));
        match newer {
            Some(newer) => Err(Failure::Fenced {
                dir: self.directory.root().to_owned(),
                generation,
                newer,
            }),
            None => Ok(()),
        }
    }
}

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

    /// The number of a generation among all that write to the directory, those of earlier jobs included.
    pub(super) fn token(&self, generation: u64) -> u64 {
        let first = self
            .keeping
            .as_ref()
            .map_or(0, |keeping| keeping.first_generation);
        first + generation
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
        Ok(keeping.standing(keeping.saver.is_time()))
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
        let is_due = sum.is_time || saving::is_due_at(batch.step, keeping.settings.every_steps);
        self.proceed(sum, is_due)
    }

    /// Saves the state of this step and waits until that is done, on all ranks; a save in flight is
    /// waited for, too. A volume that fails is told of and holds up nobody.
    pub(super) fn save_now(&mut self) -> Result<(), Failure> {
        if self.keeping.is_none() {
            return Ok(());
        }
        let mut may_begin = true;
        loop {
            let Some(keeping) = &mut self.keeping else {
                return Ok(());
            };
            keeping.hear(self.generation, self.reporter)?;
            let is_time = may_begin && !keeping.saver.has(self.mark.step);
            let own = keeping.standing(is_time);
            let sum = self.world()?.sum_saving(&own)?;
            self.chain.forget_through(sum.durable_line);
            let is_idle = sum.stages == saving::Stages::default();
            if is_idle && !sum.is_time {
                return Ok(());
            }
            // Only one try: what has failed just now would fail again.
            may_begin &= !(is_idle && sum.is_time);
            self.proceed(&sum, sum.is_time)?;
            std::thread::sleep(PAUSE);
        }
    }

    /// Does what all ranks conclude from a sum.
    fn proceed(&mut self, sum: &SavingSum, is_due: bool) -> Result<(), Failure> {
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
        let since = self
            .keeping
            .as_ref()
            .and_then(|keeping| keeping.saver.in_flight_since());
        let slow = since
            .map(|since| since.elapsed())
            .filter(|elapsed| *elapsed > SLOW);
        self.reporter.checkpoint_skipped(slow);
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
