//! What a process with a checkpoint directory has: how it gets it, and what it hears from the threads that
//! wait for the volume in its place. What each step's end adds to checkpoints and ledger is in [`save`], the save
//! that training waits for in [`last_save`].

use std::time::Instant;

use roundhouse_contract::environment::CheckpointEnvironment;
use roundhouse_elastic::best::Scores;
use roundhouse_elastic::io_timeout::Flight;
use roundhouse_elastic::ledger::Source;
use roundhouse_elastic::{Claim, Head, IoTimeout, TrainingPosition};
use roundhouse_report::{Reporter, say_error};

use crate::checkpoint::{self, Damage, Directory, Identity, Manifest, Saver, SaverEvent};
use crate::failure::Failure;
use crate::launch::Launch;
use crate::ledger::Ledger;
use crate::state::Table;
use crate::world::{Saving, SavingSum};

pub mod alone;
pub mod best;
pub mod last_save;
pub mod look;
pub mod save;

/// What a process with a checkpoint directory has.
#[derive(Debug)]
pub struct Checkpointing {
    pub(crate) directory: Directory,
    pub(crate) saver: Saver,
    pub(crate) io_timeout: IoTimeout,
    every_steps: Option<u64>,
    identity: Identity,
    table: Table,
    ledger: Option<Ledger>,
    /// Where the state was that the generation begins with.
    source: Source,
    /// Whether this rank has committed a step in the generation.
    has_committed: bool,
    /// The checkpoint that this process stands for, if it does.
    found: Option<Manifest>,
    /// The listing of the volume that is under way.
    look: Option<look::Look>,
    /// Where ledger and training were when the save in flight began.
    saved: Option<Saved>,
    /// Step of a best state whose save was abandoned when its generation ended.
    unsaved_best: Option<u64>,
    /// Whether it was told that an evaluation has not found what the best checkpoint is kept by.
    has_reported_missing_metric: bool,
    /// Added to the job's generations.
    first_generation: u64,
    /// Since when a rank is known to be stuck.
    stuck_since: Option<Instant>,
    /// Whether the states of the ranks are compared before a save.
    compares_replicas: bool,
}

/// What the manifest of the save in flight will say.
#[derive(Clone, Copy, Debug)]
struct Saved {
    ledger: Head,
    position: TrainingPosition,
    scores: Option<Scores>,
    /// Whether this rank knows that the state is the best one so far.
    is_best: bool,
}

impl Checkpointing {
    /// Prepares what the launch asks for, `None` if it names no directory. Finds the newest checkpoint, of which it
    /// reads no bytes: another process may have a newer state, and one that reads them for all is enough.
    ///
    /// # Errors
    /// [`Failure::OtherTraining`] and [`Failure::NoCheckpointUsable`] when training cannot continue with what is
    /// there, [`Failure::VolumeSilent`] when the volume does not answer, [`Failure::Volume`] when it cannot be listed.
    pub fn prepare(
        launch: &Launch,
        identity: Identity,
        table: Table,
        reporter: &mut Reporter,
    ) -> Result<Option<Self>, Failure> {
        let Some(settings) = &launch.checkpoint else {
            return Ok(None);
        };
        Self::start(settings, launch, identity, table, reporter).map(Some)
    }

    fn start(
        settings: &CheckpointEnvironment,
        launch: &Launch,
        identity: Identity,
        table: Table,
        reporter: &mut Reporter,
    ) -> Result<Self, Failure> {
        let directory = Directory::new(settings.dir.clone());
        let mut checkpointing = Self {
            every_steps: settings.every_steps,
            saver: Saver::start(settings, &directory, table.clone())?,
            directory,
            identity,
            table,
            ledger: None,
            source: Source::Initial,
            has_committed: false,
            io_timeout: launch.checkpoint_io_timeout,
            found: None,
            look: None,
            saved: None,
            unsaved_best: None,
            has_reported_missing_metric: false,
            first_generation: 0,
            stuck_since: None,
            compares_replicas: launch.compares_replicas,
        };
        let uid = settings.job_uid.clone();
        let directory = checkpointing.directory.clone();
        let first = move || checkpoint::job::first_generation(&directory, uid.as_deref());
        checkpointing.first_generation = checkpointing.ask(first, reporter)??;
        match checkpointing.find(reporter) {
            // Peers may have the state. If none has, the generation searches again.
            Err(failure @ Failure::Volume(_)) => say_error(&failure.to_string()),
            found => {
                found?;
            }
        }
        Ok(checkpointing)
    }

    /// The checkpoint that this process stands for, if it has found one.
    #[must_use]
    pub const fn found(&self) -> Option<&Manifest> {
        self.found.as_ref()
    }

    /// Where a checkpoint is, and how far it had come.
    pub(crate) fn name(&self, manifest: &Manifest) -> String {
        let path = self.directory.checkpoint(manifest.id());
        format!("checkpoint {}", path.display())
    }

    /// Finds the newest checkpoint that is not known to be damaged.
    pub(crate) fn find(&mut self, reporter: &mut Reporter) -> Result<Option<Manifest>, Failure> {
        let (directory, identity) = (self.directory.clone(), self.identity.clone());
        let table = self.table.clone();
        let find = move || checkpoint::load::find(&directory, &identity, &table);
        self.found = self.ask(find, reporter)??;
        if let Some(metric) = self.saver.metric() {
            let directory = self.directory.clone();
            let best = move || checkpoint::complete::best(&directory, metric);
            match self.ask(best, reporter)? {
                Ok(best) => self.saver.know_best(best.map(|(_, best)| best)),
                Err(volume_error) => {
                    say_error(&format!("the best checkpoint is not known: {volume_error}"))
                }
            }
        }
        Ok(self.found.clone())
    }

    /// The checkpoint that this process stands for from now on.
    pub(crate) fn stand_for(&mut self, found: Option<Manifest>) {
        self.found = found;
    }

    /// A rank could not read the bytes of a checkpoint, or they are not what they should be.
    pub(crate) fn mark_damaged(&self, claim: &Claim, damage: Damage) {
        // Checkpoints of earlier versions may have another name than their state.
        let own = self.found.as_ref().filter(|own| own.claim() == *claim);
        let id = own.map_or_else(|| claim.id(), Manifest::id);
        self.directory.damaged().mark(id, damage);
    }

    /// Has a thread ask the volume something.
    fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce() -> T + Send + 'static,
        reporter: &mut Reporter,
    ) -> Result<T, Failure> {
        let started = Instant::now();
        let io_watch = self.directory.io_watch();
        let answer = io_watch.wait_for(self.io_timeout, question, |moves| {
            reporter.volume_moves(moves);
        });
        let answer = answer.map_err(Failure::io(self.directory.root()))?;
        answer.ok_or_else(|| Failure::VolumeSilent {
            dir: self.directory.root().to_owned(),
            waited: started.elapsed(),
        })
    }

    /// What is added to the job's generations, so that they are above all that an earlier job has written.
    pub(crate) const fn first_generation(&self) -> u64 {
        self.first_generation
    }

    /// All ranks count from the same: one that came when the volume could not be read did not know it.
    pub(crate) const fn count_from(&mut self, first_generation: u64) {
        self.first_generation = first_generation;
    }

    /// Where the state was that the generation begins with.
    pub(crate) const fn continue_from(&mut self, source: Source) {
        self.source = source;
    }

    /// The generation is over. The next one decides on the save in flight.
    pub(crate) fn leave(&mut self) {
        self.ledger = None;
        self.has_committed = false;
        self.stuck_since = None;
    }

    /// What this rank has to say at a step's end.
    pub(crate) fn standing(&mut self, is_time: bool) -> Saving {
        let still = self.saver.idle_time();
        Saving {
            stage: self.saver.stage(),
            is_time,
            is_stuck: self.io_timeout.is_worth_reporting(still),
            gives_up: false,
            durable_line: self.ledger.as_ref().map_or(0, Ledger::durable),
        }
    }

    /// Reports what has happened; a newer generation ends the process.
    pub(crate) fn hear(&mut self, generation: u64, reporter: &mut Reporter) -> Result<(), Failure> {
        let mut newer = self.ledger.as_ref().and_then(Ledger::fenced);
        for event in self.saver.poll() {
            match event {
                // What was asked in an earlier generation and held up by the volume finds this one.
                SaverEvent::Fenced(found) if found <= generation => {}
                SaverEvent::Fenced(found) => newer = Some(found),
                SaverEvent::Report(report) => reporter.checkpoint(&report),
            }
        }
        if newer.is_none() && self.saver.must_complete() {
            self.complete(generation);
        }
        reporter.ledger(self.ledger_problem());
        if let Some(ledger) = &self.ledger {
            reporter.ledger_is_durable(ledger.durable());
            // A generation that breaks before its first step supersedes nothing.
            if let Some(repeats) = ledger.repeats().filter(|_| self.has_committed) {
                reporter.repeated(&repeats, self.first_generation);
            }
        }
        match newer {
            Some(newer) => Err(Failure::Fenced {
                dir: self.directory.root().to_owned(),
                generation,
                newer,
                first_generation: self.first_generation,
            }),
            None => Ok(()),
        }
    }

    fn ledger_problem(&self) -> Option<String> {
        let ledger = self.ledger.as_ref()?;
        let still = ledger.idle_time();
        if self.io_timeout.is_worth_reporting(still) {
            let path = self.directory.ledger();
            let seconds = self.io_timeout.rounded(still).as_secs();
            let reason = format!("the volume has not answered for {seconds} s");
            return Some(checkpoint::about(&path, reason));
        }
        ledger.error()
    }

    /// What is known of the save in flight, given what all ranks have said.
    pub(crate) fn flight(&mut self, sum: &SavingSum) -> (Option<u64>, Flight) {
        self.stuck_since =
            (sum.num_stuck > 0).then(|| self.stuck_since.unwrap_or_else(Instant::now));
        let flight = self.saver.in_flight();
        let known = Flight {
            lasts: flight.map(|(_, lasts, _)| lasts),
            has_skipped: flight.is_some_and(|(_, _, has_skipped)| has_skipped),
            num_stuck: sum.num_stuck,
            stuck: self
                .stuck_since
                .map(|since| since.elapsed())
                .unwrap_or_default(),
        };
        (flight.map(|(step, ..)| step), known)
    }
}
