//! One rank's side of saving: its stage, its buffers, and what the writing thread said.

use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use roundhouse_contract::environment::CheckpointEnvironment;
use roundhouse_contract::{BestCheckpoint, BestMetric};
use roundhouse_elastic::saving::Stage;
use roundhouse_elastic::shard::shard;
use roundhouse_elastic::{CheckpointId, Head};

use super::Directory;
use super::complete::Retention;
use super::io_watch::{IdleTimer, IoWatch};
use super::writer::{self, Done, Job};
use crate::failure::Failure;
use crate::state::{Snapshot, State, Table};

mod events;
mod in_flight;
mod judging;

pub use events::SaverEvent;

/// One is written while the other takes the next: a save that a new generation has abandoned may
/// still be held up by the volume.
const NUM_BUFFERS: usize = 2;

/// The save in flight.
#[derive(Debug)]
struct Flight {
    save: u64,
    id: CheckpointId,
    /// Of the state that is saved.
    hash: u64,
    /// The generation that began it.
    writer: u64,
    /// Ranks that write a part of it.
    num_parts: u32,
    stage: Stage,
    begun: Instant,
    has_skipped: bool,
    /// Whether this rank, rank 0, is to complete it: all parts are durable.
    has_all_parts: bool,
    /// Whether it has begun to.
    is_completing: bool,
}

/// Saves this rank's parts, and on rank 0 completes the checkpoints.
#[derive(Debug)]
pub struct Saver {
    every_seconds: Option<u64>,
    metric: Option<BestMetric>,
    /// The best checkpoint on the volume, as far as it is known; rank 0 alone goes by it.
    best: Option<BestCheckpoint>,
    table: Table,
    jobs: Sender<Job>,
    results: Receiver<Done>,
    /// Snapshots that are written; their memory is for the next ones. `None`: nothing was written yet.
    buffers: Vec<Option<Box<dyn Snapshot>>>,
    num_begun: u64,
    flight: Option<Flight>,
    /// Whether other ranks have a save of an earlier generation in flight, of which this one has no part.
    is_bystander: bool,
    /// When this generation's last save began.
    begun_at: Option<Instant>,
    /// How long no checkpoint had been completed, and when that was known; `None` before the first generation.
    unsaved: Option<(Duration, Instant)>,
    /// Whether the save of an earlier generation was abandoned, and none has begun since.
    is_owed: bool,
    io_watch: IoWatch,
    idle_timer: IdleTimer,
    /// Step of the newest checkpoint that is complete or may become it; rank 0 alone goes by it.
    newest_step: Option<u64>,
    /// A save of the same step must not begin while the remains of the last one are being removed.
    is_discarding: bool,
}

impl Saver {
    /// Starts the writing thread.
    ///
    /// # Errors
    /// The operating system refused the thread.
    pub fn start(
        settings: &CheckpointEnvironment,
        directory: &Directory,
        table: Table,
    ) -> Result<Self, Failure> {
        let io_watch = directory.io_watch().clone();
        let retention = Retention {
            keep: settings.keep,
            best: settings.best,
        };
        let (jobs, results) = writer::start(directory.clone(), table.clone(), retention)
            .map_err(|error| Failure::Internal(format!("the checkpoint thread: {error}")))?;
        Ok(Self {
            every_seconds: settings.every_seconds,
            metric: settings.best,
            best: None,
            table,
            jobs,
            results,
            buffers: (0..NUM_BUFFERS).map(|_| None).collect(),
            num_begun: 0,
            flight: None,
            is_bystander: false,
            begun_at: None,
            unsaved: None,
            is_owed: false,
            idle_timer: IdleTimer::new(&io_watch),
            io_watch,
            newest_step: None,
            is_discarding: false,
        })
    }

    /// What the tensors are.
    #[must_use]
    pub const fn table(&self) -> &Table {
        &self.table
    }

    /// This rank has a place in a generation; `saved_step` is that of the checkpoint its state was
    /// loaded from, if it was.
    pub fn enter(&mut self, generation: u64, rank: u32, saved_step: Option<u64>) {
        let flight = self.flight.as_ref();
        self.begun_at = flight.map(|flight| flight.begun);
        self.newest_step = flight.map(|flight| flight.id.step).or(saved_step);
        self.unsaved.get_or_insert((Duration::ZERO, Instant::now()));
        if rank == 0 {
            self.give(Job::Survey(generation));
        }
    }

    /// How long no checkpoint has been completed, as far as this rank knows; nothing before its first generation. And
    /// whether a save was abandoned.
    #[must_use]
    pub fn debt(&self) -> (Duration, bool) {
        let unsaved = self.unsaved.map(|(span, since)| span + since.elapsed());
        (unsaved.unwrap_or_default(), self.is_owed)
    }

    /// What the ranks of a generation know of it together. So the time between saves is counted over generations.
    pub fn take_over(&mut self, (unsaved, is_owed): (Duration, bool)) {
        self.unsaved = Some((unsaved, Instant::now()));
        self.is_owed = is_owed;
    }

    /// The newest checkpoint was completed so long ago.
    fn was_saved(&mut self, ago: Duration) {
        if self.begun_at.is_none() {
            self.unsaved = Some((ago, Instant::now()));
        }
    }

    /// How far this rank is with the save in flight.
    #[must_use]
    pub fn stage(&self) -> Stage {
        match &self.flight {
            Some(flight) => flight.stage,
            None if self.is_bystander => Stage::Durable,
            None if self.is_discarding || self.buffers.is_empty() => Stage::Busy,
            None => Stage::Idle,
        }
    }

    /// Whether the last checkpoint was saved long enough ago, by this rank's clock, or a save was abandoned.
    #[must_use]
    pub fn is_time(&self) -> bool {
        let (unsaved, is_owed) = self.debt();
        let begun = self.begun_at.map_or(unsaved, |at| at.elapsed());
        let is_due = |every| unsaved.min(begun) >= Duration::from_secs(every);
        self.stage() == Stage::Idle && (is_owed || self.every_seconds.is_some_and(is_due))
    }

    /// Whether a save of this step is complete or on its way.
    #[must_use]
    pub fn has(&self, step: u64) -> bool {
        self.newest_step == Some(step)
    }

    /// Another save is due, and left out because of the one in flight.
    pub const fn skip(&mut self) {
        if let Some(flight) = &mut self.flight {
            flight.has_skipped = true;
        }
    }

    /// Step of the save in flight, how long it has lasted, and whether another was left out because of it.
    #[must_use]
    pub fn in_flight(&self) -> Option<(u64, Duration, bool)> {
        let flight = self.flight.as_ref();
        flight.map(|flight| (flight.id.step, flight.begun.elapsed(), flight.has_skipped))
    }

    /// For how long nothing has moved of what this rank writes.
    pub fn idle_time(&mut self) -> Duration {
        if self.stage() != Stage::Busy {
            self.idle_timer = IdleTimer::new(&self.io_watch);
        }
        self.idle_timer.look(&self.io_watch)
    }

    /// Begins a copy of this rank's part of the state whose ledger ends with `head`, and has it written by the generation
    /// `writer`. When it returns, the state may change.
    ///
    /// # Errors
    /// The device refused the copy.
    pub fn begin(
        &mut self,
        head: &Head,
        writer: u64,
        rank: u32,
        world_size: u32,
        state: &dyn State,
    ) -> Result<(), Failure> {
        let Some(former) = self.buffers.pop() else {
            return Err(Failure::Internal("a save without a buffer".to_owned()));
        };
        let (id, begun) = (CheckpointId::of(head), Instant::now());
        let part = shard(&(0..self.table.num_bytes()), rank, world_size);
        let snapshot = state.snapshot(part, former)?;
        self.num_begun += 1;
        self.idle_timer = IdleTimer::new(&self.io_watch);
        (self.begun_at, self.is_owed) = (Some(begun), false);
        self.newest_step = Some(id.step);
        self.flight = Some(Flight {
            save: self.num_begun,
            id,
            hash: head.hash.number(),
            writer,
            num_parts: world_size,
            stage: Stage::Busy,
            begun,
            has_skipped: false,
            has_all_parts: false,
            is_completing: false,
        });
        self.give(Job::Write {
            save: self.num_begun,
            id,
            writer,
            rank,
            world_size,
            snapshot,
        });
        Ok(())
    }

    #[cfg(test)]
    pub(crate) const fn begins_every(&mut self, seconds: u64) {
        self.every_seconds = Some(seconds);
    }

    /// As if the volume held up the saves of earlier generations for ever.
    #[cfg(test)]
    pub(crate) fn hang(&mut self) {
        self.buffers.clear();
    }

    /// The thread ends with this saver, so it is there.
    fn give(&self, job: Job) {
        let _ = self.jobs.send(job);
    }
}
