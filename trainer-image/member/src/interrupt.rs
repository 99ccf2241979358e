//! Ends a wait for peers that do not answer, once it is known that training continues without them.
//!
//! A collective blocks until its peers answer or its timeout passes. A newer generation that is heard of
//! meanwhile says that the operator has decided: after a short patience, in which a healthy world
//! would have reached its step boundary, the group is aborted and the collective fails. The same happens, after a
//! longer patience, when steps continue but some rank never hears of the newer generation: its kubelet is silent, and
//! the ranks that are to join would wait for ever. [`GroupProgress`] decides how long each patience is. A collective of
//! NCCL does not return when its timeout is over; what NCCL's own watchdog has noted is read here, and ends the
//! wait, too. Gloo does not wake a thread that waits for the rest of a message whose sender is gone; what
//! [`Abort::has_failed`] finds there ends that wait.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use roundhouse_elastic::{Activity, GroupProgress, StepEstimate};
use roundhouse_report::say_error;

use crate::failure::Failure;
use crate::group::Abort;
use crate::membership::MembershipWatch;
use crate::signals::LeaveRequest;
use crate::world::let_go;

const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The thread that watches, and what it is told.
#[derive(Clone, Debug, Default)]
pub struct Interrupter {
    watched: Arc<Mutex<Option<Watched>>>,
    /// What this training's steps have taught so far.
    estimate: Arc<Mutex<StepEstimate>>,
}

#[derive(Debug)]
struct Watched {
    generation: u64,
    /// A world of one has none.
    group: Option<Arc<dyn Abort>>,
    progress: GroupProgress,
}

impl Watched {
    /// Why the wait for its peers is over, if this process should have left by now.
    fn overdue(&self, leave: &LeaveRequest) -> Option<String> {
        let words = "this process was asked to leave, and the common end of a step does not come";
        let is_overdue = self.group.is_some() && leave.is_overdue();
        is_overdue.then(|| words.to_owned())
    }

    /// Why the wait for its peers is over, if it is, given the newest generation, since when one newer than
    /// the group's is known, and whether a collective of the group has failed.
    fn over(&mut self, newest: u64, known_since: Instant, has_failed: bool) -> Option<String> {
        let Self {
            generation,
            group,
            progress,
        } = self;
        if newest > *generation {
            progress.know(known_since);
        }
        // A process that is alone asks by itself, with [`Interrupter::is_over`].
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
    /// Starts the thread.
    ///
    /// # Errors
    /// The operating system refused it.
    pub fn start(membership_file: &Path, leave: LeaveRequest) -> Result<Self, Failure> {
        let interrupter = Self::default();
        let watched = Arc::clone(&interrupter.watched);
        let (watch, newest) = MembershipWatch::start(membership_file);
        std::thread::Builder::new()
            .name("interrupter".to_owned())
            .spawn(move || run(&watched, watch, newest, &leave))
            .map_err(|error| Failure::Internal(format!("no thread to watch peers: {error}")))?;
        Ok(interrupter)
    }

    /// The group of a generation, if it has one, whose collectives are waited for from now on. It has `size` ranks.
    pub fn guard(&self, generation: u64, size: u32, group: Option<Arc<dyn Abort>>) {
        // Another world has other steps, but those of the last one tell what to expect.
        let estimate = self.estimate();
        self.replace(Some(Watched {
            generation,
            group,
            progress: GroupProgress::begin(Instant::now(), estimate, size),
        }));
    }

    /// What this process has learned of steps.
    #[must_use]
    pub fn estimate(&self) -> StepEstimate {
        *lock(&self.estimate)
    }

    /// What the ranks of this generation have learned together.
    pub fn expect(&self, estimate: StepEstimate) {
        self.tell(|progress, _| progress.expect(estimate));
    }

    /// Whether a newer generation has waited long enough. In a world of one nobody else would end what it waits
    /// for.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let watched = lock(&self.watched);
        let cut = watched
            .as_ref()
            .and_then(|watched| watched.progress.is_over(Instant::now()));
        cut.is_some()
    }

    /// A step begins.
    pub fn step_begins(&self) {
        self.tell(GroupProgress::step_begins);
    }

    /// All ranks have come to the end of a step.
    pub fn step_ends(&self) {
        self.tell(GroupProgress::step_ends);
    }

    /// The ranks do something else than steps from now on.
    pub fn enter(&self, activity: Activity) {
        self.tell(|progress, now| progress.enter(activity, now));
    }

    /// The state is shared: the ranks prepare their first step.
    pub fn prepares_steps(&self) {
        self.tell(GroupProgress::prepare_steps);
    }

    /// Bytes of a checkpoint that one rank reads for all have come.
    pub fn reads(&self) {
        self.tell(GroupProgress::reads);
    }

    /// A collective has ended on all ranks.
    pub fn moves(&self) {
        self.tell(GroupProgress::moves);
    }

    /// The longest step of this generation, from start to start.
    #[must_use]
    pub fn longest_step(&self) -> Duration {
        let watched = lock(&self.watched);
        watched
            .as_ref()
            .map_or(Duration::ZERO, |watched| watched.progress.longest_step())
    }

    /// The group is left.
    pub fn release(&self) {
        self.replace(None);
    }

    /// What was watched until now is freed outside the lock, on which the thread would wait.
    fn replace(&self, watched: Option<Watched>) {
        let before = std::mem::replace(&mut *lock(&self.watched), watched);
        if let Some(group) = before.and_then(|before| before.group) {
            let_go(group);
        }
    }

    fn tell(&self, what: impl FnOnce(&mut GroupProgress, Instant)) {
        if let Some(watched) = lock(&self.watched).as_mut() {
            what(&mut watched.progress, Instant::now());
            *lock(&self.estimate) = watched.progress.estimate();
        }
    }
}

/// Watches until nobody else holds what is watched.
fn run(
    watched: &Arc<Mutex<Option<Watched>>>,
    mut watch: MembershipWatch,
    mut newest: u64,
    leave: &LeaveRequest,
) {
    let mut known_since = Instant::now();
    while Arc::strong_count(watched) > 1 {
        std::thread::sleep(POLL_INTERVAL);
        let document = watch.poll();
        let failed = failed(watched);
        let mut watched = lock(watched);
        if let Some(document) = document
            && document.generation > newest
        {
            // Newer ones, one after the other, do not put it off.
            let guarded = watched.as_ref().map(|watched| watched.generation);
            if guarded.is_none_or(|guarded| newest <= guarded) {
                known_since = Instant::now();
            }
            newest = document.generation;
        }
        let over = watched.as_mut().and_then(|watched| {
            let has_failed = failed == Some(watched.generation);
            let over = watched.over(newest, known_since, has_failed);
            over.or_else(|| watched.overdue(leave))
        });
        // Taken out, so that it is not aborted twice.
        let over = over.and_then(|reason| {
            let Watched {
                generation, group, ..
            } = watched.take()?;
            Some((reason, generation, group?))
        });
        // An abort may take a while, and the training thread has things to say.
        drop(watched);
        if let Some((reason, generation, group)) = over {
            say_error(&format!("generation {generation} is cut off: {reason}"));
            group.abort();
            let_go(group);
        }
    }
}

/// The generation whose group has a collective that has failed. The group is asked outside the lock: in Python it needs the
/// interpreter, whose thread may wait for the lock.
fn failed(watched: &Mutex<Option<Watched>>) -> Option<u64> {
    let (generation, group) = {
        let watched = lock(watched);
        let watched = watched.as_ref()?;
        (watched.generation, Arc::clone(watched.group.as_ref()?))
    };
    let has_failed = group.has_failed();
    if Arc::strong_count(&group) == 1 {
        // The training thread has left it meanwhile.
        let_go(group);
    }
    has_failed.then_some(generation)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
