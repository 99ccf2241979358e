//! Copies of the state in a volume of the worker, which outlives its processes and containers but
//! not its pod. If all processes that hold the state die, training continues from the newest copy
//! instead of the newest checkpoint, which is usually much older. A worker of several pods can also
//! keep second copies, each in another pod on another node: then it may lose a pod, too. The second
//! copies of a worker of one pod are in a spare, which reads them when it takes the worker's place.
//!
//! A thread writes the copies, so training waits only for the snapshot. All ranks begin a copy
//! after the same step, and none begins while one is being written. Each process writes the bytes
//! that it has; of processes that all have the whole state, the worker's first one writes it.
//! [`roundhouse_elastic::local_copies`] decides which copies stay.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use roundhouse_contract::CopyRole;
use roundhouse_contract::environment::LocalCopiesEnvironment;
use roundhouse_elastic::local_copies::{Contents, Placement};
use roundhouse_elastic::state::Layout;
use roundhouse_elastic::{CheckpointId, Digest, Head, saving};
use roundhouse_report::say_error;

use crate::failure::Failure;
use crate::local_state::LocalState;
use crate::state::{Snapshot, State};

mod directory;
mod file;
mod holder;
mod holding;
mod just_in_time;
mod member;
mod message;
mod peer;
mod pods;
mod prepare;
mod restore;
mod server;
mod transfer;
mod volumes;
mod writer;

use directory::Directory;
use file::Kind;
use holder::{Pairs, read_pair};
use holding::Holding;
use pods::Pods;
use volumes::Volumes;
use writer::{Done, Ended, NewCopy, Request};

pub(crate) use member::copies_of;

/// Bytes in a unit of messages.
const MIB: u64 = 1 << 20;

/// How long a process that ends waits for its copy in progress, to delete it.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a step waits for the copy of the step before, if each step is copied to another pod. If
/// that copy takes longer, the next one is skipped.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// The copies of this process, and the thread that writes them.
#[derive(Debug)]
pub struct LocalCopies {
    settings: LocalCopiesEnvironment,
    directory: Directory,
    local_rank: u32,
    local_world_size: u32,
    /// The pods of the replica; `None` if it has one.
    pods: Option<Pods>,
    /// Where a worker of one pod sends second copies.
    pairs: Pairs,
    /// Takes the copies of another worker; `None` if this job has no holders.
    holding: Option<Holding>,
    /// Hash of the training and its tensors.
    training: Digest,
    requests: Sender<Request>,
    results: Receiver<Done>,
    /// Memory of the last snapshot, for the next one.
    buffer: Option<Box<dyn Snapshot>>,
    /// Whether the last copy also goes to another pod.
    is_shared: bool,
    /// Number of requests to the thread that have not ended.
    num_requested: u32,
    /// Whether the last copy could not be written.
    has_failed: bool,
    /// Set when copies must not get their names any more.
    is_discarded: Arc<AtomicBool>,
}

/// What became of a copy that is due.
#[derive(Debug)]
enum Begun {
    /// The thread writes it.
    Writing,
    /// Another process of the worker writes it.
    OfAnother,
    /// The copies need more bytes than the volume has.
    NoRoom { needed: u64, limit: u64 },
}

impl LocalCopies {
    /// Whether this process can save the state of a copy if it is asked to leave before it trains.
    /// In a replica of several pods the others are not asked, so it would wait for their parts.
    pub(crate) fn can_save(&self) -> bool {
        let has_copies = |it: Contents| it.values().any(|ids| !ids.is_empty());
        // The copies of a holder are those of a worker that trains.
        let pair_file = self.settings.pair_file.as_deref();
        let is_holder = pair_file.is_some_and(|it| read_pair(it, CopyRole::Holder).is_some());
        self.pods.is_none() && !is_holder && self.directory.contents().is_ok_and(has_copies)
    }

    /// Sets whether this process is a member of a generation. If not, its pod may hold copies of
    /// another worker.
    pub(crate) fn set_member(&self, is_member: bool) {
        if let Some(holding) = &self.holding {
            holding.set_member(is_member);
        }
    }

    /// Whether a copy is due after this step.
    pub(crate) const fn is_due_at(&self, step: u64) -> bool {
        saving::is_due_at(step, Some(self.settings.every_steps))
    }

    /// Whether this process still writes a copy.
    pub(crate) const fn is_writing(&self) -> bool {
        self.num_requested > 0
    }

    /// Whether this process could not write its last copy, or let another pod hold it.
    pub(crate) const fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Whether this process writes copies: each that has a part of the state, or else the first.
    const fn writes(&self, layout: Option<&Layout>) -> bool {
        layout.is_some() || self.local_rank == 0
    }

    /// How long the vote on a step waits for the copy of the step before, which was written while
    /// this step was computed: if each step is copied to another pod, a loss repeats at most one.
    pub(crate) const fn wait_before_vote(&self) -> Duration {
        let waits = self.settings.every_steps == 1 && self.is_shared && self.is_writing();
        if waits { LONGEST_WAIT } else { Duration::ZERO }
    }

    /// Returns the next result of the thread, if it comes in time.
    fn next_result(&mut self, time: Duration) -> Option<Ended> {
        match self.results.recv_timeout(time) {
            Ok(done) => Some(self.end(done)),
            Err(RecvTimeoutError::Timeout) => {
                // The next steps do not wait for the same copy.
                self.is_shared &= time.is_zero();
                None
            }
            Err(RecvTimeoutError::Disconnected) => {
                (self.num_requested, self.has_failed) = (0, true);
                None
            }
        }
    }

    fn end(&mut self, done: Done) -> Ended {
        let Done { ended, snapshot } = done;
        self.buffer = snapshot.or_else(|| self.buffer.take());
        self.num_requested = self.num_requested.saturating_sub(1);
        self.has_failed = ended.has_failed();
        if let Some(has_taken) = ended.has_taken_copy() {
            self.pairs.record(has_taken);
        }
        ended
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
        let needed = file::most_bytes(&kind, &words).saturating_mul(self.num_copies() * num_parts);
        if let Some(limit) = self.settings.max_bytes.filter(|limit| needed > *limit) {
            self.has_failed = true;
            return Ok(Begun::NoRoom { needed, limit });
        }
        let begun = Instant::now();
        let snapshot = state.snapshot(0..kind.state_bytes, self.buffer.take())?;
        let volumes = self.volumes(layout);
        // A step does not wait for a pod that did not take the last copy.
        self.is_shared = match &volumes.holder {
            Some(holder) => holder.works(),
            None => volumes.has_other_places() && !self.has_failed,
        };
        self.request(Request::Write(NewCopy {
            id: CheckpointId::of(head),
            rank,
            begun,
            volumes,
            kind,
            words,
            snapshot,
        }));
        Ok(Begun::Writing)
    }

    fn request(&mut self, request: Request) {
        // Without the thread, which has panicked then, no copy counts.
        match self.requests.send(request) {
            Ok(()) => self.num_requested += 1,
            Err(_) => self.has_failed = true,
        }
    }

    /// Number of copies of each part for which the volume must have room: the one before and the
    /// one in progress, of this pod and of a pod whose copies this one holds.
    fn num_copies(&self) -> u64 {
        let holds = self.pods.as_ref().is_some_and(Pods::hold_copies_here);
        if holds { 4 } else { 2 }
    }

    /// Whether spares hold second copies for workers of one pod.
    const fn have_pairs(&self) -> bool {
        self.settings.pair_file.is_some()
    }

    /// Whether `peerCopies` is set, so that other pods should hold copies, too. At the moment none
    /// may be able to.
    pub(crate) fn expect_second_copies(&self) -> bool {
        let pods = self.pods.as_ref();
        self.have_pairs() || pods.is_some_and(|it| !it.replica.holders.is_empty())
    }

    /// Whether each pod of the replica has another one that holds its copies.
    fn have_holders(&self) -> bool {
        let holders = self.pods.as_ref().map(|pods| &pods.replica.holders);
        holders.is_some_and(|holders| !holders.is_empty() && holders.iter().all(Option::is_some))
    }

    /// Deletes all copies of this process' part, because its state is suspect. Without its part the
    /// copies of its siblings are of no use either.
    pub(crate) fn discard(&mut self, layout: Option<&Layout>) {
        self.is_discarded.store(true, Ordering::Relaxed);
        let deadline = Instant::now() + DISCARD_TIMEOUT;
        while self.is_writing() {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.results.recv_timeout(left) {
                Ok(done) => {
                    self.end(done);
                }
                Err(_) => break,
            }
        }
        if !self.writes(layout) {
            return;
        }
        if let Err(error) = self.volumes(layout).discard() {
            let dir = self.directory.root().display();
            say_error(&format!(
                "{dir}: local copies of a suspect state cannot be deleted: {error}"
            ));
        }
    }

    /// The volumes of this worker's pods, and what belongs where.
    fn volumes(&mut self, layout: Option<&Layout>) -> Volumes {
        let pair_file = self.settings.pair_file.as_deref();
        let holder = pair_file.and_then(|file| self.pairs.holder(file));
        let replica = self.pods.as_ref().map(|pods| &pods.replica);
        let (shard, num_shards) = layout.map_or((0, 1), |it| (it.shard(), it.num_shards()));
        let shards_per_pod = layout.map_or(1, |_| self.local_world_size);
        Volumes {
            directory: self.directory.clone(),
            siblings: self
                .pods
                .as_ref()
                .map_or_else(Vec::new, |pods| pods.siblings.clone()),
            holder,
            placement: Placement {
                num_shards,
                shards_per_pod,
                holders: replica.map_or_else(Vec::new, |it| it.holders.clone()),
            },
            pod: replica.map_or(0, |it| it.pod),
            shard,
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
}
