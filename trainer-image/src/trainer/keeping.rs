//! What a process with a checkpoint directory has: how it gets it, and what it hears from the threads that
//! wait for the volume in its stead.

use std::time::Instant;

use roundhouse_contract::environment::CheckpointEnvironment;
use roundhouse_elastic::Patience;
use roundhouse_elastic::patience::Flight;

use crate::checkpoint::{self, Directory, Identity, Manifest, NamedTensors, News, Saver};
use crate::failure::Failure;
use crate::ledger::Ledger;
use crate::report::{Reporter, say};
use crate::world::{Saving, SavingSum};

/// What a process with a checkpoint directory has.
#[derive(Debug)]
pub(super) struct Keeping {
    pub(super) every_steps: Option<u64>,
    pub(super) directory: Directory,
    pub(super) identity: Identity,
    pub(super) saver: Saver,
    pub(super) ledger: Option<Ledger>,
    pub(super) patience: Patience,
    /// Added to the job's generations.
    first_generation: u64,
    /// Since when a rank is known to be stuck.
    stuck_since: Option<Instant>,
}

impl Keeping {
    /// Starts saving, and loads the newest checkpoint into `state` if there is one.
    pub(super) fn start(
        settings: &CheckpointEnvironment,
        patience: Patience,
        identity: Identity,
        state: &mut NamedTensors,
        reporter: &mut Reporter,
    ) -> Result<(Self, Option<Manifest>), Failure> {
        let directory = Directory::new(settings.dir.clone());
        let table = state.table()?;
        let load = {
            let (directory, identity, table) = (directory.clone(), identity.clone(), table.clone());
            let uid = settings.job_uid.clone();
            move || {
                let first = checkpoint::job::first_generation(&directory, uid.as_deref());
                let loaded = checkpoint::load::newest(&directory, &identity, &table);
                loaded.map(|loaded| (first, loaded))
            }
        };
        let started = Instant::now();
        let pulse = directory.pulse();
        let result = pulse.wait_for(patience, load, |moves| reporter.volume_moves(moves));
        let result = result.map_err(Failure::io(directory.root()))?;
        let (first_generation, loaded) = result.ok_or_else(|| Failure::VolumeSilent {
            dir: directory.root().to_owned(),
            waited: started.elapsed(),
        })??;
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
        let keeping = Self {
            every_steps: settings.every_steps,
            saver: Saver::start(settings, &directory, table)?,
            directory,
            identity,
            ledger: None,
            patience,
            first_generation,
            stuck_since: None,
        };
        Ok((keeping, manifest))
    }

    /// What is added to the job's generations, so that they are above all that an earlier job has written.
    pub(super) const fn first_generation(&self) -> u64 {
        self.first_generation
    }

    /// All ranks count from the same: who came when the volume could not be read did not know it.
    pub(super) const fn count_from(&mut self, first_generation: u64) {
        self.first_generation = first_generation;
    }

    /// The generation is over.
    pub(super) fn leave(&mut self) {
        self.saver.abandon();
        self.ledger = None;
        self.stuck_since = None;
    }

    /// What this rank has to say at a step's end.
    pub(super) fn standing(&mut self, is_time: bool) -> Saving {
        let still = self.saver.stands_still();
        Saving {
            stage: self.saver.stage(),
            is_time,
            is_stuck: self.patience.is_worth_telling(still),
            gives_up: false,
            durable_line: self.ledger.as_ref().map_or(0, Ledger::durable),
        }
    }

    /// Reports what has happened; a newer generation ends the process.
    pub(super) fn hear(&mut self, generation: u64, reporter: &mut Reporter) -> Result<(), Failure> {
        let mut newer = self.ledger.as_ref().and_then(Ledger::fenced);
        for news in self.saver.poll() {
            match news {
                // What was asked in an earlier generation and held up by the volume finds this one.
                News::Fenced(found) if found <= generation => {}
                News::Fenced(found) => newer = Some(found),
                news => reporter.checkpoint(&news),
            }
        }
        reporter.ledger(self.trouble_with_ledger());
        match newer {
            Some(newer) => Err(Failure::Fenced {
                dir: self.directory.root().to_owned(),
                generation,
                newer,
            }),
            None => Ok(()),
        }
    }

    fn trouble_with_ledger(&self) -> Option<String> {
        let ledger = self.ledger.as_ref()?;
        let still = ledger.stands_still();
        if self.patience.is_worth_telling(still) {
            let path = self.directory.ledger();
            let seconds = self.patience.rounded(still).as_secs();
            let reason = format!("the volume has not answered for {seconds} s");
            return Some(checkpoint::about(&path, reason));
        }
        ledger.error()
    }

    /// What is known of the save in flight, given what all ranks have said.
    pub(super) fn flight(&mut self, sum: &SavingSum) -> (Option<u64>, Flight) {
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
