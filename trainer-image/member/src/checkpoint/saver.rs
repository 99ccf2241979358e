//! One rank's side of a save: its stage, its buffers and the results of the writing thread.

use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use roundhouse_contract::environment::CheckpointEnvironment;
use roundhouse_contract::{BestCheckpoint, BestMetric};
use roundhouse_elastic::saving::Stage;
use roundhouse_elastic::shard::shard;
use roundhouse_elastic::state::layout::TensorRuns;
use roundhouse_elastic::{CheckpointId, Head};

use super::Directory;
use super::complete::Retention;
use super::io_watch::{IdleTimer, IoWatch};
use super::manifest::PieceRecord;
use super::shard::records;
use super::writer::{self, Done, Job};
use crate::failure::Failure;
use crate::state::{Snapshot, State, Table};

mod events;
mod in_flight;
mod judging;

pub use events::SaverEvent;

/// While one buffer is written, the other takes the next snapshot: the volume may still delay a
/// save that a new generation has abandoned.
const NUM_BUFFERS: usize = 2;

/// The save in flight.
#[derive(Debug)]
struct Flight {
    save: u64,
    id: CheckpointId,
    /// Hash of the state's last ledger line.
    hash: u64,
    /// Generation that began the save.
    writer: u64,
    /// Number of ranks that write a part.
    num_parts: u32,
    stage: Stage,
    begun: Instant,
    has_skipped: bool,
    /// Whether all parts are durable and this rank, rank 0, must complete the checkpoint.
    has_all_parts: bool,
    /// Whether the writing thread has the order to complete it.
    is_completing: bool,
}

/// Saves this rank's parts, and on rank 0 completes the checkpoints.
#[derive(Debug)]
pub struct Saver {
    every_seconds: Option<u64>,
    metric: Option<BestMetric>,
    /// The best known checkpoint on the volume. Only rank 0 uses it.
    best: Option<BestCheckpoint>,
    table: Table,
    jobs: Sender<Job>,
    results: Receiver<Done>,
    /// Memory of written snapshots, for the next ones. `None`: not used yet.
    buffers: Vec<Option<Box<dyn Snapshot>>>,
    num_begun: u64,
    flight: Option<Flight>,
    /// Whether other ranks have a save of an earlier generation in flight in which this rank has no
    /// part.
    is_bystander: bool,
    /// Start of this generation's last save.
    begun_at: Option<Instant>,
    /// Time without a complete checkpoint, and when it was measured; `None` before the first
    /// generation.
    unsaved: Option<(Duration, Instant)>,
    /// Whether the save of an earlier generation was abandoned and no save has begun since.
    is_owed: bool,
    io_watch: IoWatch,
    idle_timer: IdleTimer,
    /// Step of the newest checkpoint that is complete or may become so. Only rank 0 uses it.
    newest_step: Option<u64>,
    /// Whether the remains of the last save are being removed. Until then no save of the same step
    /// may begin.
    is_discarding: bool,
    /// Number of jobs that the writing thread has not ended yet.
    num_jobs: usize,
}

/// The bytes of its own row that a rank writes, and their pieces.
pub fn part_of(
    state: &dyn State,
    table: &Table,
    rank: u32,
    world_size: u32,
) -> (Range<u64>, Vec<PieceRecord>) {
    let Some(layout) = state.layout() else {
        let own = shard(&(0..table.num_bytes()), rank, world_size);
        return (own, records(table, rank, world_size));
    };
    // The replicas divide each shard among themselves.
    let num_shards = layout.num_shards();
    let own = shard(
        &(0..layout.num_written()),
        rank / num_shards,
        world_size / num_shards,
    );
    let record =
        |TensorRuns { tensor, runs }| PieceRecord::new(table.views()[tensor].name.clone(), runs);
    let pieces = layout.pieces(&own).into_iter().map(record).collect();
    (own, pieces)
}

impl Saver {
    /// Starts the writing thread.
    ///
    /// # Errors
    /// [`Failure::Internal`] if the operating system refuses the thread.
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
            num_jobs: 0,
        })
    }

    /// The tensors of the state.
    #[must_use]
    pub const fn table(&self) -> &Table {
        &self.table
    }

    /// Called when this rank joins a generation. `saved_step` is the step of the checkpoint from
    /// which its state was loaded, if any.
    pub fn enter(&mut self, generation: u64, rank: u32, saved_step: Option<u64>) {
        let flight = self.flight.as_ref();
        self.begun_at = flight.map(|flight| flight.begun);
        self.newest_step = flight.map(|flight| flight.id.step).or(saved_step);
        self.unsaved.get_or_insert((Duration::ZERO, Instant::now()));
        if rank == 0 {
            self.give(Job::Survey(generation));
        }
    }

    /// Time without a complete checkpoint, as far as this rank knows (zero before its first
    /// generation), and whether a save was abandoned.
    #[must_use]
    pub fn debt(&self) -> (Duration, bool) {
        let unsaved = self.unsaved.map(|(span, since)| span + since.elapsed());
        (unsaved.unwrap_or_default(), self.is_owed)
    }

    /// Takes over what the ranks of a generation agreed on, so that the save interval counts across
    /// generations.
    pub fn take_over(&mut self, (unsaved, is_owed): (Duration, bool)) {
        self.unsaved = Some((unsaved, Instant::now()));
        self.is_owed = is_owed;
    }

    /// Records that the newest checkpoint was completed `ago`.
    fn was_saved(&mut self, ago: Duration) {
        if self.begun_at.is_none() {
            self.unsaved = Some((ago, Instant::now()));
        }
    }

    /// Stage of this rank in the save in flight.
    #[must_use]
    pub fn stage(&self) -> Stage {
        match &self.flight {
            Some(flight) => flight.stage,
            None if self.is_bystander => Stage::Durable,
            None if self.is_discarding || self.buffers.is_empty() => Stage::Busy,
            None => Stage::Idle,
        }
    }

    /// Whether the last save is long enough ago by this rank's clock, or a save was abandoned.
    #[must_use]
    pub fn is_time(&self) -> bool {
        let (unsaved, is_owed) = self.debt();
        let begun = self.begun_at.map_or(unsaved, |at| at.elapsed());
        let is_due = |every| unsaved.min(begun) >= Duration::from_secs(every);
        self.stage() == Stage::Idle && (is_owed || self.every_seconds.is_some_and(is_due))
    }

    /// Whether a save of this step is complete or in flight.
    #[must_use]
    pub fn has(&self, step: u64) -> bool {
        self.newest_step == Some(step)
    }

    /// Records that another save was due and was skipped because of the one in flight.
    pub const fn skip(&mut self) {
        if let Some(flight) = &mut self.flight {
            flight.has_skipped = true;
        }
    }

    /// Step of the save in flight, its duration so far, and whether another save was skipped
    /// because of it.
    #[must_use]
    pub fn in_flight(&self) -> Option<(u64, Duration, bool)> {
        let flight = self.flight.as_ref();
        flight.map(|flight| (flight.id.step, flight.begun.elapsed(), flight.has_skipped))
    }

    /// Whether the writing thread has work left. After a save is complete it names the best
    /// checkpoint and deletes old ones.
    #[must_use]
    pub const fn is_working(&self) -> bool {
        self.num_jobs > 0
    }

    /// Time without progress of this rank's writes.
    pub fn idle_time(&mut self) -> Duration {
        if self.stage() != Stage::Busy {
            self.idle_timer = IdleTimer::new(&self.io_watch);
        }
        self.idle_timer.elapsed(&self.io_watch)
    }

    /// Begins to copy this rank's part of the state whose ledger ends with `head`, for the writing
    /// thread of generation `writer`. The state may change after this returns.
    ///
    /// # Errors
    /// [`Failure::State`] if the state cannot be copied.
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
        let (own, pieces) = part_of(state, &self.table, rank, world_size);
        let snapshot = state.snapshot(own, former)?;
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
            pieces,
            snapshot,
        });
        Ok(())
    }

    #[cfg(test)]
    pub(crate) const fn begins_every(&mut self, seconds: u64) {
        self.every_seconds = Some(seconds);
    }

    /// Acts as if the volume delayed the saves of earlier generations indefinitely.
    #[cfg(test)]
    pub(crate) fn hang(&mut self) {
        self.buffers.clear();
    }

    /// Sends a job to the thread, which lives as long as this saver.
    fn give(&mut self, job: Job) {
        self.num_jobs += 1;
        let _ = self.jobs.send(job);
    }
}
