//! Checkpointing of a process with a checkpoint directory: starts it and handles the results of the
//! threads that wait for the volume. [`save`] has the part of each step's end, [`last_save`] the
//! save that training waits for.

use std::time::Instant;

use roundhouse_contract::environment::CheckpointEnvironment;
use roundhouse_elastic::best::Scores;
use roundhouse_elastic::io_timeout::Flight;
use roundhouse_elastic::ledger::Source;
use roundhouse_elastic::{CheckpointId, Claim, Head, IoTimeout, TrainingPosition};
use roundhouse_report::{Reporter, say_error};

use crate::checkpoint::{self, Damage, Directory, Identity, Manifest, Saver, SaverEvent};
use crate::failure::Failure;
use crate::launch::Launch;
use crate::ledger::Ledger;
use crate::local_copies::LocalCopies;
use crate::state::Table;
use crate::world::{Saving, SavingSum};

pub mod alone;
pub mod best;
pub mod last_save;
pub mod listing;
pub mod save;
mod siblings;

/// Checkpoints and ledger of a process with a checkpoint directory.
#[derive(Debug)]
pub struct Checkpointing {
    pub(crate) directory: Directory,
    pub(crate) saver: Saver,
    pub(crate) io_timeout: IoTimeout,
    every_steps: Option<u64>,
    identity: Identity,
    table: Table,
    ledger: Option<Ledger>,
    /// Source of the state with which the generation starts.
    source: Source,
    /// Whether this rank has committed a step in the generation.
    has_committed: bool,
    /// The checkpoint that this process claims, if it does.
    found: Option<Manifest>,
    /// The listing of the volume in progress.
    listing: Option<listing::Listing>,
    /// Ledger and position at the start of the save in flight.
    saved: Option<Saved>,
    /// Step of a best state whose save was abandoned when its generation ended.
    unsaved_best: Option<u64>,
    /// Whether it was reported that an evaluation lacks the metric of the best checkpoint.
    has_reported_missing_metric: bool,
    /// Offset of the job's generations.
    first_generation: u64,
    /// When a rank was first known to be stuck.
    stuck_since: Option<Instant>,
    /// Whether the ranks compare their states before a save.
    compares_replicas: bool,
    /// Copies in a volume of the worker; `None` if the job keeps none.
    pub(crate) copies: Option<LocalCopies>,
}

/// Data for the manifest of the save in flight.
#[derive(Clone, Copy, Debug)]
struct Saved {
    ledger: Head,
    position: TrainingPosition,
    scores: Option<Scores>,
    /// Whether this rank knows that the state is the best one so far.
    is_best: bool,
}

impl Checkpointing {
    /// Prepares checkpointing if the launch names a directory, else returns `None`. Finds the
    /// newest checkpoint without reading its bytes: another process may have a newer state, and one
    /// reader for all is enough.
    ///
    /// # Errors
    /// [`Failure::OtherTraining`] and [`Failure::NoCheckpointUsable`] if training cannot continue
    /// from the existing checkpoints, [`Failure::VolumeSilent`] if the volume does not answer,
    /// [`Failure::Volume`] if it cannot be listed.
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
        let copies = LocalCopies::prepare(launch, &identity, &table)?;
        if let Some(copies) = &copies {
            reporter.keeps_copies(copies.expect_second_copies());
        }
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
            listing: None,
            saved: None,
            unsaved_best: None,
            has_reported_missing_metric: false,
            first_generation: 0,
            stuck_since: None,
            compares_replicas: launch.compares_replicas,
            copies,
        };
        let uid = settings.job_uid.clone();
        let directory = checkpointing.directory.clone();
        let first = move || checkpoint::job::first_generation(&directory, uid.as_deref());
        checkpointing.first_generation = checkpointing.ask(first, reporter)??;
        match checkpointing.find(reporter) {
            // Peers may have the state. If none has it, the generation searches again.
            Err(failure @ Failure::Volume(_)) => say_error(&failure.to_string()),
            found => {
                found?;
            }
        }
        Ok(checkpointing)
    }

    /// The checkpoint that this process claims, if it has found one.
    #[must_use]
    pub const fn found(&self) -> Option<&Manifest> {
        self.found.as_ref()
    }

    /// The checkpoint that this process has found, unless it is known to be damaged.
    pub(crate) fn sound(&self) -> Option<CheckpointId> {
        let id = self.found.as_ref().map(Manifest::id)?;
        let damage = self.directory.damaged().of(id);
        damage.is_none().then_some(id)
    }

    /// Names a checkpoint by its path, for messages.
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

    /// Finds the checkpoint with this name, which another process of the replica has found.
    pub(crate) fn find_by_id(
        &mut self,
        id: CheckpointId,
        reporter: &mut Reporter,
    ) -> Result<Result<Manifest, checkpoint::VolumeError>, Failure> {
        let directory = self.directory.clone();
        let find = move || checkpoint::load::usable(&directory, id);
        let found = self.ask(find, reporter)?;
        if let Ok(manifest) = &found {
            self.found = Some(manifest.clone());
        }
        Ok(found)
    }

    /// Sets the checkpoint that this process claims.
    pub(crate) fn stand_for(&mut self, found: Option<Manifest>) {
        self.found = found;
    }

    /// Records that a rank could not read a checkpoint or found wrong bytes.
    pub(crate) fn mark_damaged(&self, claim: &Claim, damage: Damage) {
        // The name of a checkpoint of earlier versions may differ from its claim.
        let own = self.found.as_ref().filter(|own| own.claim() == *claim);
        let id = own.map_or_else(|| claim.id(), Manifest::id);
        self.directory.damaged().mark(id, damage);
    }

    /// Runs a request to the volume in a thread.
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

    /// Offset of the job's generations, which makes them newer than those of earlier jobs.
    pub(crate) const fn first_generation(&self) -> u64 {
        self.first_generation
    }

    /// Takes over the ranks' common offset. A rank that started while the volume was unreadable
    /// does not know it.
    pub(crate) const fn count_from(&mut self, first_generation: u64) {
        self.first_generation = first_generation;
    }

    /// Source of the state with which the generation starts.
    pub(crate) const fn continue_from(&mut self, source: Source) {
        self.source = source;
    }

    /// Ends the generation. The next one decides on the save in flight.
    pub(crate) fn leave(&mut self) {
        self.ledger = None;
        self.has_committed = false;
        self.stuck_since = None;
    }

    /// This rank's report at the end of a step.
    pub(crate) fn standing(&mut self, is_time: bool) -> Saving {
        let still = self.saver.idle_time();
        Saving {
            stage: self.saver.stage(),
            is_time,
            is_stuck: self.io_timeout.is_worth_reporting(still),
            gives_up: false,
            durable_line: self.ledger.as_ref().map_or(0, Ledger::durable),
            is_copying: self.copies.as_ref().is_some_and(LocalCopies::is_writing),
            copy_failed: self.copies.as_ref().is_some_and(LocalCopies::has_failed),
        }
    }

    /// Reports the results of the checkpoint and ledger threads. Fails with [`Failure::Fenced`] if
    /// a newer generation has written.
    pub(crate) fn report_results(
        &mut self,
        generation: u64,
        reporter: &mut Reporter,
    ) -> Result<(), Failure> {
        let mut newer = self.ledger.as_ref().and_then(Ledger::fenced);
        for event in self.saver.poll() {
            match event {
                // A check of an earlier generation that the volume delayed finds this generation.
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
            // A generation that ends before its first step supersedes none.
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

    /// State of the save in flight, given the sum over all ranks.
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
