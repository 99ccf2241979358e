//! Whether the caches are too old to act on. A reconcile asks this at three moments: before it
//! observes (do the caches show the operator's own writes?), before it carries out an irrevocable
//! plan (is a watch silent or broken?), and before it creates a pod again (does the job still
//! exist?).

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use roundhouse_api::TrainingJob;

use crate::job::JobKey;
use crate::memory::expectations::Lag;
use crate::memory::{JobMemories, JobMemory};
use crate::metrics::Metrics;
use crate::metrics::api::Api as ApiMetrics;
use crate::metrics::labels::Watched;
use crate::metrics::watch_ages::WatchAges;
use crate::runtime::api::error::CallError;
use crate::watch::client::WatchTimeouts;

use self::confirm::ClockWarning;

pub mod confirm;
mod deleted_job;
mod missing_pod;

/// Why the caches are too old to act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stale {
    /// They do not show a write of the operator yet. They may take this long; then the operator
    /// asks the API server.
    OwnWrite(Duration),
    /// They do not show a pod that the operator created, and the API server has it: the watch of
    /// pods is late.
    MissingPod,
    /// A watch is silent, or broke off and has not caught up. [`Staleness::confirm`] shows whether
    /// that matters to a job.
    Watch {
        kind: Watched,
        /// How long ago the watch last received anything.
        age: Duration,
    },
    /// They show a job that is deleted.
    DeletedJob,
}

/// What shows that caches are stale: the ages of the watches, the operator's own writes, and the
/// API server itself.
pub struct Staleness {
    client: Client,
    memories: Arc<JobMemories>,
    ages: WatchAges,
    api: ApiMetrics,
    /// The age at which a watch is stale.
    limit: Duration,
    clock_warning: ClockWarning,
}

impl Staleness {
    /// The staleness of an operator that has just started.
    #[must_use]
    pub fn new(
        client: Client,
        memories: Arc<JobMemories>,
        metrics: &Metrics,
        timeouts: WatchTimeouts,
    ) -> Self {
        Self {
            client,
            memories,
            ages: metrics.watch_ages.clone(),
            api: metrics.api.clone(),
            limit: timeouts.stale,
            clock_warning: ClockWarning::default(),
        }
    }

    /// The watch that has received nothing for too long, and its age.
    #[must_use]
    pub fn silent_watch(&self) -> Option<(Watched, Duration)> {
        let oldest = self.ages.oldest();
        oldest.filter(|(_, age)| *age >= self.limit)
    }

    /// Whether the caches do not show what the operator wrote for a job. `lag`: what they lack.
    ///
    /// # Errors
    /// The API server refused to read a pod that is missing, or did not answer.
    pub(crate) async fn of_writes(
        &self,
        job: &JobKey,
        lag: impl Fn() -> Option<Lag>,
    ) -> Result<Option<Stale>, CallError> {
        while let Some(lag) = lag() {
            match lag {
                Lag::Left(left) => return Ok(Some(Stale::OwnWrite(left))),
                Lag::Overdue(write, seen) if self.is_pod_missing(job, &write, seen).await? => {
                    return Ok(Some(Stale::MissingPod));
                }
                // The watch has skipped it: the object was deleted again.
                Lag::Overdue(write, _) => {
                    let forget = |memory: &mut JobMemory| memory.expectations.forget(&write);
                    self.memories.with(job, forget);
                }
            }
        }
        Ok(None)
    }

    /// Whether a cache may lack what was decided elsewhere: its watch is silent, or broke off and
    /// has not caught up.
    #[must_use]
    pub fn of_watches(&self) -> Option<Stale> {
        let stale = self.silent_watch().or_else(|| self.ages.broken());
        stale.map(|(kind, age)| Stale::Watch { kind, age })
    }

    /// Whether the caches show a job that is deleted. The operator asks the API server only if it
    /// created one of these pods a short while ago, so that this would be its second creation.
    ///
    /// # Errors
    /// The API server refused to read the job, or did not answer.
    pub(crate) async fn of_job(
        &self,
        job: &TrainingJob,
        pods: &[String],
    ) -> Result<Option<Stale>, CallError> {
        let is_deleted = self.is_job_deleted(job, pods).await?;
        Ok(is_deleted.then_some(Stale::DeletedJob))
    }
}
