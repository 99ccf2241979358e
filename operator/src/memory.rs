//! What the operator remembers of each job between two reconciles: one [`JobMemory`] per job, all
//! of them behind one lock. A memory begins when the watch of the jobs reports the job and ends
//! when the watch reports its deletion. All memories are lost when the operator restarts, and
//! nothing irrevocable depends on them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use kube::runtime::watcher::Event;
use roundhouse_planner::JobIdentity;
use tokio::sync::Notify;

use self::backoff::Backoff;
use self::expectations::Expectations;
use self::progress::Progress;
use self::progress::pace::Pace;
use self::recent_pods::RecentPods;
use self::repairs::{Pauses, Repairs};
use self::status_delay::StatusDelay;
use self::taken_names::TakenNames;
use self::unsent_events::UnsentEvents;
use self::verdict::RememberedVerdict;
use self::workers::Workers;
use crate::job::existing::ExistingJobs;
use crate::job::{JobKey, JobName};

pub mod backoff;
pub mod expectations;
pub mod progress;
pub mod recent_pods;
pub mod repairs;
pub mod status_delay;
pub mod taken_names;
pub mod unsent_events;
pub(crate) mod verdict;
pub mod workers;

/// What the operator remembers of one job.
#[derive(Debug)]
pub struct JobMemory {
    /// The name of the job, to wake it.
    pub name: JobName,
    /// Own writes that the caches do not show yet.
    pub expectations: Expectations,
    /// The pauses after errors and conflicts.
    pub backoff: Backoff,
    /// Repairs of the job's objects. Another client may revert each of them.
    pub repairs: Repairs,
    /// Pods that the operator created a short while ago.
    pub recent_pods: RecentPods,
    /// Whether a status that changed only in counts and messages is being held back.
    pub status_delay: StatusDelay,
    /// Names that the job needs and another object has.
    pub taken_names: TakenNames,
    /// Events of a status write that got no answer.
    pub unsent_events: UnsentEvents,
    /// The reports of rank 0, while the job trains.
    pub progress: Progress,
    /// Reports of the agents of workers that are not Ready.
    pub workers: Workers,
    /// Whether the job, if it was refused, could begin.
    pub(crate) verdict: RememberedVerdict,
}

impl JobMemory {
    fn new(name: JobName, pauses: Pauses) -> Self {
        Self {
            name,
            expectations: Expectations::default(),
            backoff: Backoff::default(),
            repairs: Repairs::new(pauses),
            recent_pods: RecentPods::default(),
            status_delay: StatusDelay::default(),
            taken_names: TakenNames::default(),
            unsent_events: UnsentEvents::default(),
            progress: Progress::default(),
            workers: Workers::default(),
            verdict: RememberedVerdict::default(),
        }
    }
}

/// The memories of all jobs that exist.
#[derive(Debug)]
pub struct JobMemories {
    state: Mutex<State>,
    pauses: Pauses,
    /// Wakes the task that polls agents, before its next tick.
    poll_requests: Notify,
}

#[derive(Debug)]
struct State {
    jobs: ExistingJobs<JobMemory>,
    /// How often agents are polled for progress, by the number of jobs that trained at the last
    /// polls.
    pace: Pace,
}

impl JobMemories {
    /// No memories yet. `pauses`: between two repairs of one object.
    #[must_use]
    pub fn new(pauses: Pauses) -> Self {
        let state = State {
            jobs: ExistingJobs::default(),
            pace: Pace::of(0),
        };
        Self {
            state: Mutex::new(state),
            pauses,
            poll_requests: Notify::new(),
        }
    }

    /// Applies an event of the watch of the jobs.
    pub fn apply(&self, event: &Event<JobIdentity>) {
        let new = |job: &JobIdentity| JobMemory::new(JobName::from(job), self.pauses);
        self.lock().jobs.apply(event, new);
    }

    /// Whether the job exists, as far as the watch has reported.
    #[must_use]
    pub fn exists(&self, job: &JobKey) -> bool {
        self.lock().jobs.all().contains_key(job)
    }

    /// Reads or changes the memory of a job. A job that does not exist any more has an empty one,
    /// which is dropped at once. `f` runs under the lock: it must not call this again.
    pub fn with<R>(&self, job: &JobKey, f: impl FnOnce(&mut JobMemory) -> R) -> R {
        let mut state = self.lock();
        let Some(memory) = state.jobs.get_mut(job) else {
            drop(state);
            return f(&mut JobMemory::new(JobName::default(), self.pauses));
        };
        f(memory)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
