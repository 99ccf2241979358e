//! Ends a wait for peers that do not answer, once it is known that training goes on without them.
//!
//! A collective blocks until its peers answer or its timeout passes. A newer generation that is heard of
//! meanwhile says that the operator has decided: after a short patience, in which a healthy world
//! would have reached its step boundary, the group is aborted and the collective fails. So it is, after a
//! longer one, when steps go on but somebody never hears of the newer generation: its kubelet is silent, and
//! whoever is to join would wait for ever. NCCL has no timeout that a collective would tell; what its own
//! watch has seen is looked at here, and ends the wait, too.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use roundhouse_c10d::ProcessGroup;

use crate::failure::Failure;
use crate::membership::MembershipWatch;
use crate::world::let_go;

const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// Without a step boundary for so long after a newer generation was seen, or for this many of the longest
/// step so far, the wait is over.
const PATIENCE: Duration = Duration::from_secs(2);
const STEPS_OF_PATIENCE: u32 = 3;
/// After this, or so many of the longest step, who has not heard of a newer generation is left behind. A
/// kubelet tells it within a second.
const PATIENCE_WITH_THE_DEAF: Duration = Duration::from_secs(15);

/// The thread that watches, and what it is told.
#[derive(Clone, Debug, Default)]
pub struct Interrupter {
    watched: Arc<Mutex<Watched>>,
}

#[derive(Debug, Default)]
struct Watched {
    group: Option<(u64, Arc<ProcessGroup>)>,
    /// Last sign that the collectives of the group move.
    moved_at: Option<Instant>,
    longest_step: Duration,
}

impl Watched {
    /// Whether the wait is over, given the newest generation and since when one newer than the group's
    /// is known.
    fn is_over(&self, newest: u64, known_since: Instant, now: Instant) -> bool {
        let Some((generation, _)) = &self.group else {
            return false;
        };
        let steps = self.longest_step * STEPS_OF_PATIENCE;
        let known_for = now.saturating_duration_since(known_since);
        let moved_for = self
            .moved_at
            .map_or(known_for, |at| now.saturating_duration_since(at));
        let is_stuck = known_for.min(moved_for) >= PATIENCE.max(steps);
        let is_unheard = known_for >= PATIENCE_WITH_THE_DEAF.max(steps);
        newest > *generation && (is_stuck || is_unheard)
    }

    /// The group, if the wait for its peers is over. It is nobody's to abort again.
    fn take_if_over(&mut self, newest: u64, known_since: Instant) -> Option<Arc<ProcessGroup>> {
        let is_over = self.is_over(newest, known_since, Instant::now());
        let group = &self.group;
        let has_failed = || group.as_ref().is_some_and(|(_, group)| group.has_failed());
        if is_over || has_failed() {
            return self.group.take().map(|(_, group)| group);
        }
        None
    }

    /// Whether a generation is newer than the group's.
    fn is_newer(&self, generation: u64) -> bool {
        let guarded = self.group.as_ref().map(|(guarded, _)| *guarded);
        guarded.is_some_and(|guarded| generation > guarded)
    }
}

impl Interrupter {
    /// Starts to watch a membership file.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub fn start(membership_file: &Path) -> Result<Self, Failure> {
        let interrupter = Self::default();
        let watched = Arc::clone(&interrupter.watched);
        let (mut watch, mut newest) = MembershipWatch::start(membership_file);
        let mut known_since = Instant::now();
        std::thread::Builder::new()
            .name("interrupter".to_owned())
            .spawn(move || {
                // Until nobody else holds it.
                while Arc::strong_count(&watched) > 1 {
                    std::thread::sleep(LOOK_INTERVAL);
                    let document = watch.poll();
                    let mut watched = watched.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Some(document) = document
                        && document.generation > newest
                    {
                        // Newer ones, one after the other, do not put it off.
                        if !watched.is_newer(newest) {
                            known_since = Instant::now();
                        }
                        newest = document.generation;
                    }
                    let over = watched.take_if_over(newest, known_since);
                    // An abort may take a while, and the training thread has things to say.
                    drop(watched);
                    if let Some(group) = over {
                        // Whoever waits gets the error; here there is nothing to be done about one.
                        let _ = group.abort();
                        let_go(group);
                    }
                }
            })
            .map_err(|error| Failure::Internal(format!("no thread to watch peers: {error}")))?;
        Ok(interrupter)
    }

    /// The group of a generation, whose collectives are waited for from now on.
    pub fn guard(&self, generation: u64, group: Option<Arc<ProcessGroup>>) {
        let mut watched = self.lock();
        watched.group = group.map(|group| (generation, group));
        // Another world has other steps.
        watched.longest_step = Duration::ZERO;
        watched.moved_at = Some(Instant::now());
    }

    /// All ranks have come to the end of a step that took so long.
    pub fn step_done(&self, took: Duration) {
        let mut watched = self.lock();
        watched.moved_at = Some(Instant::now());
        watched.longest_step = watched.longest_step.max(took);
    }

    /// The group is left.
    pub fn release(&self) {
        self.lock().group = None;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
