//! Ends a wait for peers that do not answer, once it is known that training continues without them.
//!
//! A collective blocks until its peers answer or its timeout passes. If a newer generation appears
//! meanwhile, the operator has decided to continue. After a short timeout, in which a healthy group
//! would have reached its step boundary, the group is aborted and the collective fails. The same
//! happens after a longer timeout if steps continue but some rank never learns of the newer
//! generation: the kubelet of that rank delivers nothing, and the joining ranks would wait
//! indefinitely. [`GroupProgress`] decides on both timeouts. A collective of NCCL does not return
//! when its timeout is over, so errors that NCCL's watchdog has noted end the wait too. Gloo does
//! not wake a thread that waits for the rest of a message whose sender is gone;
//! [`Abort::has_failed`] detects this and ends that wait, also in the groups of this process'
//! replica. If a process of the replica is lost without a sign, because its host does not answer,
//! the agent writes a file that ends all waits.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use roundhouse_elastic::{Activity, GroupProgress, StepEstimate};
use roundhouse_report::say_error;

use crate::failure::Failure;
use crate::group::Abort;
use crate::membership::MembershipWatch;
use crate::signals::LeaveRequest;
use crate::world::let_go;

const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Why a process ends whose replica has another life, or has lost a process.
pub(crate) const LIFE_IS_OVER: &str = "the agent has ended this life of the replica";

/// The thread that watches the peers, and its input.
#[derive(Clone, Debug, Default)]
pub struct Interrupter {
    watched: Arc<Mutex<Option<Watched>>>,
    of_replica: Arc<Mutex<ReplicaConnections>>,
    /// Step times of this training so far.
    estimate: Arc<Mutex<StepEstimate>>,
}

/// The connections to the other processes of the replica, which last for all generations.
#[derive(Debug, Default)]
struct ReplicaConnections {
    connections: Vec<Weak<dyn Abort>>,
    /// File that the agent creates when this life of the replica is over.
    over: Option<PathBuf>,
    /// Whether the file was there.
    is_over: bool,
}

#[derive(Debug)]
struct Watched {
    generation: u64,
    /// `None` for a single rank.
    group: Option<Arc<dyn Abort>>,
    progress: GroupProgress,
}

impl Watched {
    /// Reason to end the wait for the peers, if this process should have left by now.
    fn overdue(&self, leave: &LeaveRequest) -> Option<String> {
        let words = "this process was asked to leave, and no step boundary came in time";
        let is_overdue = self.group.is_some() && leave.is_overdue();
        is_overdue.then(|| words.to_owned())
    }

    /// Reason to end the wait for the peers, if there is one. `newest` is the newest generation,
    /// `known_since` when one newer than the group's became known, and `has_failed` whether a
    /// collective of the group has failed.
    fn over(&mut self, newest: u64, known_since: Instant, has_failed: bool) -> Option<String> {
        let Self {
            generation,
            group,
            progress,
        } = self;
        if newest > *generation {
            progress.know(known_since);
        }
        // A single rank asks by itself, with [`Interrupter::is_over`].
        group.as_ref()?;
        let failed = || {
            let words = "a collective that waits for its peers has failed";
            has_failed.then(|| words.to_owned())
        };
        let cut = progress.is_over(Instant::now());
        cut.map(|cut| cut.to_string()).or_else(failed)
    }
}

impl Interrupter {
    /// Starts the thread that watches.
    ///
    /// # Errors
    /// [`Failure::Internal`] if the operating system refuses the thread.
    pub fn start(membership_file: &Path, leave: LeaveRequest) -> Result<Self, Failure> {
        let interrupter = Self::default();
        let watched = Arc::clone(&interrupter.watched);
        let of_replica = Arc::clone(&interrupter.of_replica);
        let (watch, newest) = MembershipWatch::start(membership_file);
        std::thread::Builder::new()
            .name("interrupter".to_owned())
            .spawn(move || run(&watched, &of_replica, watch, newest, &leave))
            .map_err(|error| Failure::Internal(format!("no thread to watch peers: {error}")))?;
        Ok(interrupter)
    }

    /// Watches the connections of the replica, from now on. `over`: see
    /// [`roundhouse_contract::paths::end_of_life`].
    pub fn guard_replica(&self, connections: Vec<Weak<dyn Abort>>, over: PathBuf) {
        *lock(&self.of_replica) = ReplicaConnections {
            connections,
            over: Some(over),
            is_over: false,
        };
    }

    /// Whether the agent has announced the end of this life of the replica.
    #[must_use]
    pub fn is_life_over(&self) -> bool {
        lock(&self.of_replica).is_over
    }

    /// Watches the collectives of a generation's group, if it has one, from now on. The generation
    /// has `size` ranks.
    pub fn guard(&self, generation: u64, size: u32, group: Option<Arc<dyn Abort>>) {
        // Another group has other steps, but the last step times are an estimate.
        let estimate = self.estimate();
        self.replace(Some(Watched {
            generation,
            group,
            progress: GroupProgress::begin(Instant::now(), estimate, size),
        }));
    }

    /// The step times that this process has measured.
    #[must_use]
    pub fn estimate(&self) -> StepEstimate {
        *lock(&self.estimate)
    }

    /// Takes over the step times on which the ranks have agreed.
    pub fn expect(&self, estimate: StepEstimate) {
        self.update(|progress, _| progress.expect(estimate));
    }

    /// Whether a newer generation has waited long enough. In a group of one, no other rank would
    /// end its work.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let watched = lock(&self.watched);
        let cut = watched
            .as_ref()
            .and_then(|watched| watched.progress.is_over(Instant::now()));
        cut.is_some()
    }

    /// Records that a step begins.
    pub fn step_begins(&self) {
        self.update(GroupProgress::step_begins);
    }

    /// Records that all ranks have reached the end of a step.
    pub fn step_ends(&self) {
        self.update(GroupProgress::step_ends);
    }

    /// Records that the ranks begin an activity other than steps.
    pub fn enter(&self, activity: Activity) {
        self.update(|progress, now| progress.enter(activity, now));
    }

    /// Records that the ranks have the state and prepare their first step.
    pub fn prepares_steps(&self) {
        self.update(GroupProgress::prepare_steps);
    }

    /// Records progress of the rank that reads a checkpoint for all.
    pub fn reads(&self) {
        self.update(GroupProgress::reads);
    }

    /// Records that a collective has ended on all ranks.
    pub fn moves(&self) {
        self.update(GroupProgress::moves);
    }

    /// Duration of the longest step of this generation, from start to start.
    #[must_use]
    pub fn longest_step(&self) -> Duration {
        let watched = lock(&self.watched);
        watched
            .as_ref()
            .map_or(Duration::ZERO, |watched| watched.progress.longest_step())
    }

    /// Ends the watch when the process leaves the group.
    pub fn release(&self) {
        self.replace(None);
    }

    /// Frees the former group outside the lock, for which the thread may wait.
    fn replace(&self, watched: Option<Watched>) {
        let before = std::mem::replace(&mut *lock(&self.watched), watched);
        if let Some(group) = before.and_then(|before| before.group) {
            let_go(group);
        }
    }

    fn update(&self, what: impl FnOnce(&mut GroupProgress, Instant)) {
        if let Some(watched) = lock(&self.watched).as_mut() {
            what(&mut watched.progress, Instant::now());
            *lock(&self.estimate) = watched.progress.estimate();
        }
    }
}

/// Runs until no other handle of `watched` exists.
fn run(
    watched: &Arc<Mutex<Option<Watched>>>,
    of_replica: &Mutex<ReplicaConnections>,
    mut watch: MembershipWatch,
    mut newest: u64,
    leave: &LeaveRequest,
) {
    let mut known_since = Instant::now();
    while Arc::strong_count(watched) > 1 {
        std::thread::sleep(POLL_INTERVAL);
        let document = watch.poll();
        let is_life_over = abort_failed(of_replica);
        let failed = failed(watched);
        let mut watched = lock(watched);
        if let Some(document) = document
            && document.generation > newest
        {
            // Further generations do not restart the timeout.
            let guarded = watched.as_ref().map(|watched| watched.generation);
            if guarded.is_none_or(|guarded| newest <= guarded) {
                known_since = Instant::now();
            }
            newest = document.generation;
        }
        let over = watched.as_mut().and_then(|watched| {
            let has_failed = failed == Some(watched.generation);
            let over = watched.over(newest, known_since, has_failed);
            let over = over.or_else(|| watched.overdue(leave));
            let ends = is_life_over && watched.group.is_some();
            over.or_else(|| ends.then(|| LIFE_IS_OVER.to_owned()))
        });
        // Take the group out, so that it is aborted once.
        let over = over.and_then(|reason| {
            let Watched {
                generation, group, ..
            } = watched.take()?;
            Some((reason, generation, group?))
        });
        // Release the lock: an abort may take long, and the training thread must be able to record
        // progress.
        drop(watched);
        if let Some((reason, generation, group)) = over {
            say_error(&format!("leaving generation {generation}: {reason}"));
            group.abort();
            let_go(group);
        }
    }
}

/// Returns the generation whose group has a failed collective. Calls the group without holding the
/// lock: in Python the call needs the interpreter, whose thread may wait for the lock.
fn failed(watched: &Mutex<Option<Watched>>) -> Option<u64> {
    let (generation, group) = {
        let watched = lock(watched);
        let watched = watched.as_ref()?;
        (watched.generation, Arc::clone(watched.group.as_ref()?))
    };
    let has_failed = group.has_failed();
    give_back(group);
    has_failed.then_some(generation)
}

/// Aborts the connections of a replica that wait for a process that is gone: no generation ends
/// these waits, because the replica cannot continue without that process. Returns whether this life
/// of the replica is over.
fn abort_failed(of_replica: &Mutex<ReplicaConnections>) -> bool {
    let (connections, is_over, ends_now) = {
        let mut of_replica = lock(of_replica);
        let file = of_replica.over.as_ref();
        let ends_now = !of_replica.is_over && file.is_some_and(|file| file.exists());
        of_replica.is_over |= ends_now;
        (of_replica.connections.clone(), of_replica.is_over, ends_now)
    };
    if ends_now {
        say_error(LIFE_IS_OVER);
    }
    // Without the lock, as in [`failed`].
    for connection in connections.iter().filter_map(Weak::upgrade) {
        let has_failed = connection.has_failed();
        if has_failed {
            say_error("a collective that waits for the processes of this worker has failed");
        }
        if has_failed || ends_now {
            connection.abort();
        }
        give_back(connection);
    }
    is_over
}

/// Drops a handle of a group, which the training thread may have left meanwhile.
fn give_back(group: Arc<dyn Abort>) {
    if Arc::strong_count(&group) == 1 {
        let_go(group);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[derive(Debug, Default)]
    struct Group {
        num_aborts: AtomicU32,
    }

    impl Abort for Group {
        fn abort(&self) {
            self.num_aborts.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn becomes(group: &Group, num_aborts: u32) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while group.num_aborts.load(Ordering::SeqCst) != num_aborts {
            assert!(Instant::now() < deadline, "{group:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Also a group that forms after the end of the life was announced.
    #[test]
    fn end_of_a_life_ends_all_waits() {
        let directory = tempfile::tempdir().unwrap();
        let over = directory.path().join("over");
        let membership = directory.path().join("membership");
        let interrupter = Interrupter::start(&membership, LeaveRequest::default()).unwrap();
        let replica = Arc::new(Group::default());
        let connection: Weak<dyn Abort> = Arc::downgrade(&replica) as _;
        interrupter.guard_replica(vec![connection], over.clone());
        let [first, second] = [(); 2].map(|()| Arc::new(Group::default()));
        interrupter.guard(1, 2, Some(Arc::clone(&first) as _));
        std::fs::write(over, "").unwrap();
        becomes(&replica, 1);
        becomes(&first, 1);
        interrupter.guard(2, 2, Some(Arc::clone(&second) as _));
        becomes(&second, 1);
        assert_eq!(replica.num_aborts.load(Ordering::SeqCst), 1);
    }
}
