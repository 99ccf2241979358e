//! Whether the caches are too old to act on. A reconcile asks this at three moments: before it observes (do the caches show the
//! operator's own writes?), before it carries out an irrevocable plan (is a watch silent or broken?), and before it creates a
//! pod again (does the job still exist?).

use std::sync::Arc;
use std::time::Duration;

use kube::Client;

use crate::memory::JobMemories;
use crate::metrics::Metrics;
use crate::metrics::api::Api as ApiMetrics;
use crate::metrics::labels::Watched;
use crate::metrics::watch_ages::WatchAges;
use crate::watch::client::WatchTimeouts;

use self::confirm::ClockWarning;

pub mod confirm;
mod deleted_job;
mod missing_pod;

/// What shows that caches are stale: the ages of the watches, the operator's own writes, and the API server itself.
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
    /// Of an operator that has just started.
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

    /// The watch whose cache may lack what was decided elsewhere, and its age: the watch is silent, or it broke off and has not
    /// caught up.
    #[must_use]
    pub fn stale_watch(&self) -> Option<(Watched, Duration)> {
        self.silent_watch().or_else(|| self.ages.broken())
    }
}
