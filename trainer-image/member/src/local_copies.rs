//! Copies of the state in a volume of the worker, which outlives its processes and containers but
//! not its pod. If all processes that hold the state die, training continues from the newest copy
//! instead of the newest checkpoint, which is usually much older.
//!
//! A thread writes the copies, so training waits only for the snapshot. All ranks begin a copy
//! after the same step, and none begins while one is being written. Each process writes the bytes
//! that it has; of processes that all have the whole state, the worker's first one writes it.
//! [`roundhouse_elastic::local_copies`] decides which copies stay.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use roundhouse_contract::environment::LocalCopiesEnvironment;
use roundhouse_elastic::state::Layout;
use roundhouse_elastic::{CheckpointId, Digest, Head, local_copies, saving};
use roundhouse_report::say_error;

use crate::checkpoint::Identity;
use crate::checkpoint::directory::parsed;
use crate::failure::Failure;
use crate::launch::Launch;
use crate::local_state::LocalState;
use crate::state::{Snapshot, State, Table};

mod file;
mod member;
mod writer;

use file::Kind;
use writer::{Done, NotWritten, Request, Written};

/// Extension of a copy while it is written.
const PARTIAL: &str = "partial";
/// How long a process that ends waits for its copy in progress, to delete it.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(30);

/// The copies of this process, and the thread that writes them.
#[derive(Debug)]
pub struct LocalCopies {
    settings: LocalCopiesEnvironment,
    local_rank: u32,
    local_world_size: u32,
    /// Hash of the training and its tensors.
    training: Digest,
    requests: Sender<Request>,
    results: Receiver<Done>,
    /// Memory of the last snapshot, for the next one.
    buffer: Option<Box<dyn Snapshot>>,
    is_writing: bool,
    /// Set when copies must not get their names any more.
    is_discarded: Arc<AtomicBool>,
}

/// What became of a copy that is due.
#[derive(Debug)]
pub(crate) enum Begun {
    /// The thread writes it.
    Writing,
    /// Another process of the worker writes it.
    OfAnother,
    /// Two copies need more bytes than the volume has.
    NoRoom { needed: u64, limit: u64 },
    /// The directory of the copies cannot be read.
    Unreadable(NotWritten),
}

impl LocalCopies {
    /// Starts the thread if the launch asks for copies. What an earlier process has not completed
    /// is removed.
    ///
    /// # Errors
    /// [`Failure::Internal`] if the operating system refuses the thread.
    pub(crate) fn prepare(
        launch: &Launch,
        identity: &Identity,
        table: &Table,
    ) -> Result<Option<Self>, Failure> {
        let checkpoint = launch.checkpoint.as_ref();
        let Some(settings) = checkpoint.and_then(|it| it.local.clone()) else {
            return Ok(None);
        };
        let (requests, received) = channel();
        let (done, results) = channel();
        let is_discarded = Arc::new(AtomicBool::new(false));
        let discarded = Arc::clone(&is_discarded);
        let write_all = move || writer::write_all(&received, &done, &discarded);
        std::thread::Builder::new()
            .name("local-copies".to_owned())
            .spawn(write_all)
            .map_err(|error| Failure::Internal(format!("the thread of local copies: {error}")))?;
        let copies = Self {
            settings,
            local_rank: launch.local_rank,
            local_world_size: launch.local_world_size,
            training: identity.hash(table),
            requests,
            results,
            buffer: None,
            is_writing: false,
            is_discarded,
        };
        copies.remove_partial();
        Ok(Some(copies))
    }

    /// Whether this worker has kept a copy that this process may use.
    pub(crate) fn has_copies(&self) -> bool {
        let of = |rank| self.complete(rank).is_ok_and(|copies| !copies.is_empty());
        of(0) || of(self.local_rank)
    }

    /// Whether a copy is due after this step.
    pub(crate) const fn is_due_at(&self, step: u64) -> bool {
        saving::is_due_at(step, Some(self.settings.every_steps))
    }

    /// Whether this process still writes a copy.
    pub(crate) const fn is_writing(&self) -> bool {
        self.is_writing
    }

    /// Whether this process writes copies: each that has a part of the state, or else the first.
    const fn writes(&self, layout: Option<&Layout>) -> bool {
        layout.is_some() || self.local_rank == 0
    }

    /// Returns the copy that was written since the last call.
    fn poll(&mut self) -> Option<Written> {
        let done = self.results.try_recv().ok()?;
        Some(self.end(done))
    }

    fn end(&mut self, done: Done) -> Written {
        let Done { written, snapshot } = done;
        self.buffer = Some(snapshot);
        self.is_writing = false;
        written
    }

    /// Begins to copy this process' part of the state whose ledger ends with `head`. The state may
    /// change after this returns.
    ///
    /// # Errors
    /// [`Failure::State`] if the state cannot be copied.
    fn begin<S: State>(
        &mut self,
        rank: u32,
        head: &Head,
        local_state: &LocalState,
        state: &S,
    ) -> Result<Begun, Failure> {
        let layout = state.layout();
        if !self.writes(layout) {
            return Ok(Begun::OfAnother);
        }
        let (kind, words) = (self.kind(state)?, local_state.words());
        let num_parts = layout.map_or(1, |_| u64::from(self.local_world_size));
        let needed = file::most_bytes(&kind, &words).saturating_mul(2 * num_parts);
        if let Some(limit) = self.settings.max_bytes.filter(|limit| needed > *limit) {
            return Ok(Begun::NoRoom { needed, limit });
        }
        let superseded = match self.superseded(layout) {
            Ok(superseded) => superseded,
            Err(error) => {
                let path = self.settings.dir.clone();
                return Ok(Begun::Unreadable(NotWritten::Io { path, error }));
            }
        };
        let id = CheckpointId::of(head);
        let begun = Instant::now();
        let snapshot = state.snapshot(0..kind.state_bytes, self.buffer.take())?;
        self.is_writing = true;
        // The thread lives as long as this process.
        let _ = self.requests.send(Request {
            id,
            rank,
            begun,
            path: self.path(self.local_rank, id),
            superseded,
            kind,
            words,
            snapshot,
        });
        Ok(Begun::Writing)
    }

    /// Deletes all copies of this process, because its state is suspect. Without its part the
    /// copies of its siblings are of no use either.
    pub(crate) fn discard(&mut self) {
        self.is_discarded.store(true, Ordering::Relaxed);
        if self.is_writing
            && let Ok(done) = self.results.recv_timeout(DISCARD_TIMEOUT)
        {
            self.end(done);
        }
        let own = self.complete(self.local_rank);
        let paths = own.map(|own| own.into_iter().map(|id| self.path(self.local_rank, id)));
        let removed = paths.and_then(|mut paths| paths.try_for_each(|path| writer::remove(&path)));
        if let Err(error) = removed {
            let dir = self.settings.dir.display();
            say_error(&format!(
                "{dir}: local copies of a suspect state cannot be deleted: {error}"
            ));
        }
    }

    fn kind<S: State>(&self, state: &S) -> Result<Kind, Failure> {
        let of_parts = |layout: &Layout| {
            let parts = (layout.shard(), layout.num_shards(), layout.parts());
            Digest::of(&[format!("{parts:?}").as_bytes()])
        };
        Ok(Kind {
            schema_version: file::SCHEMA_VERSION,
            training: self.training,
            layout: state.layout().map(of_parts),
            state_bytes: state.num_own_bytes()?,
        })
    }

    fn superseded(&self, layout: Option<&Layout>) -> io::Result<Vec<PathBuf>> {
        let own = self.complete(self.local_rank)?;
        let superseded = local_copies::superseded(&own, &self.of_all(layout)?);
        let path = |id| self.path(self.local_rank, id);
        Ok(superseded.into_iter().map(path).collect())
    }

    /// The complete copies of each process that writes them.
    fn of_all(&self, layout: Option<&Layout>) -> io::Result<Vec<Vec<CheckpointId>>> {
        let num_parts = layout.map_or(1, |_| self.local_world_size);
        (0..num_parts).map(|rank| self.complete(rank)).collect()
    }

    /// The complete copies of one process of the worker.
    fn complete(&self, local_rank: u32) -> io::Result<Vec<CheckpointId>> {
        parsed(&self.directory(local_rank), CheckpointId::parse)
    }

    fn path(&self, local_rank: u32, id: CheckpointId) -> PathBuf {
        self.directory(local_rank).join(id.name())
    }

    fn directory(&self, local_rank: u32) -> PathBuf {
        self.settings.dir.join(format!("process-{local_rank}"))
    }

    fn remove_partial(&self) {
        let directory = self.directory(self.local_rank);
        let partial = |name: &str| name.ends_with(PARTIAL).then(|| directory.join(name));
        let removed = parsed(&directory, partial)
            .and_then(|all| all.iter().try_for_each(|path| writer::remove(path)));
        if let Err(error) = removed {
            say_error(&format!("{}: {error}", directory.display()));
        }
    }
}
