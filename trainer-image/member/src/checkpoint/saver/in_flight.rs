//! The save in flight: generations continue or abandon it, and rank 0 completes it.

use std::time::{Duration, Instant};

use roundhouse_elastic::CheckpointId;
use roundhouse_elastic::saving::{Carried, Stage};

use super::Saver;
use crate::checkpoint::io_watch::IdleTimer;
use crate::checkpoint::manifest::Manifest;
use crate::checkpoint::writer::Job;
use crate::ledger::Progress;

impl Saver {
    /// The save in flight, as reported when a generation forms.
    #[must_use]
    pub fn carried(&self) -> Option<Carried> {
        let flight = self.flight.as_ref()?;
        let num_parts = if flight.has_all_parts {
            0
        } else {
            flight.num_parts
        };
        Some(Carried {
            writer: flight.writer,
            hash: flight.hash,
            num_parts,
        })
    }

    /// Continues this save in a new generation. A rank with a part of it continues as before; any
    /// other rank has nothing to write. Returns whether this rank has a part.
    pub fn continue_with(&mut self, save: Carried) -> bool {
        let is_own = self.carried() == Some(save);
        if !is_own {
            // If this rank has a save in flight, rank 0 knows that all its parts are durable and
            // this rank does not.
            self.flight = None;
        }
        self.is_bystander = !is_own && save.num_parts > 0;
        is_own
    }

    /// Abandons the save in flight in a new generation. A checkpoint that rank 0 already completes
    /// is valid and may still become complete. Returns the step of a save that no rank completes,
    /// as far as this rank knows.
    pub fn abandon(&mut self) -> Option<u64> {
        self.is_bystander = false;
        let flight = self.flight.take()?;
        (!flight.has_all_parts).then_some(flight.id.step)
    }

    /// Called when all parts are durable: rank 0 must complete the checkpoint, and the other ranks
    /// are done.
    pub fn all_parts_are_durable(&mut self, is_rank_0: bool) {
        self.is_bystander = false;
        let begun = self.flight.as_ref().map(|flight| flight.begun);
        match &mut self.flight {
            Some(flight) if is_rank_0 => {
                flight.has_all_parts = true;
                flight.stage = Stage::Busy;
                self.idle_timer = IdleTimer::new(&self.io_watch);
            }
            _ => {
                self.unsaved = Some((Duration::ZERO, begun.unwrap_or_else(Instant::now)));
                self.flight = None;
            }
        }
    }

    /// Whether this rank must complete a checkpoint and has not begun to, or was fenced by its own
    /// next generation.
    #[must_use]
    pub fn must_complete(&self) -> bool {
        let flight = self.flight.as_ref();
        flight.is_some_and(|flight| flight.has_all_parts && !flight.is_completing)
    }

    /// On rank 0, completes the checkpoint in this generation once the generation's ledger is
    /// durable up to its step.
    pub fn complete(
        &mut self,
        generation: u64,
        ledger: Progress,
        manifest: impl FnOnce(CheckpointId, u32) -> Manifest,
    ) {
        let Some(flight) = self.flight.as_mut().filter(|flight| flight.has_all_parts) else {
            return;
        };
        flight.is_completing = true;
        let job = Job::Complete {
            save: flight.save,
            generation,
            writer: flight.writer,
            manifest: Box::new(manifest(flight.id, flight.num_parts)),
            ledger,
        };
        self.give(job);
    }

    /// Gives up the save because some parts could not be written; rank 0 removes the others.
    /// Returns whether this rank's part is among the failed ones.
    pub fn give_up(&mut self, rank: u32) -> bool {
        self.newest_step = None;
        self.is_bystander = false;
        let Some(flight) = self.flight.take() else {
            return false;
        };
        if rank == 0 {
            self.is_discarding = true;
            self.give(Job::Discard(flight.id, flight.writer));
        }
        flight.stage == Stage::Failed
    }
}
