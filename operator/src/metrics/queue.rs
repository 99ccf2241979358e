//! Counts the jobs that wait for a reconcile and measures how long they wait. The wait starts when
//! a job is first due: at its first event, although its reconcile begins only when its events
//! pause.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{Histogram, IntGauge, Registry};

use super::{Clock, histogram};
use crate::job::JobName;

/// Upper bounds in seconds. A reconcile begins when the events of a job have paused for 20 ms, so
/// no wait is shorter.
const SECONDS: [f64; 12] = [
    0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
];

/// The jobs that wait, and since when each of them is due.
#[derive(Clone)]
pub struct Queue {
    due: Arc<Mutex<HashMap<JobName, Instant>>>,
    clock: Clock,
    depth: IntGauge,
    wait: Histogram,
}

impl Queue {
    pub(super) fn new(registry: &Registry, clock: Clock) -> Result<Self, prometheus::Error> {
        let queue = Self {
            due: Arc::default(),
            clock,
            depth: IntGauge::new(
                "roundhouse_operator_queue_depth",
                "Jobs that are due for a reconcile that has not begun.",
            )?,
            wait: histogram(
                registry,
                "roundhouse_operator_queue_wait_seconds",
                "From the moment a job is due for a reconcile until the reconcile begins.",
                &SECONDS,
            )?,
        };
        registry.register(Box::new(queue.clone()))?;
        Ok(queue)
    }

    /// A reconcile of the job is due after this time. An earlier due time stays.
    pub fn due(&self, job: &JobName, after: Duration) {
        let at = (self.clock)() + after;
        let mut all = self.lock();
        let due = all.entry(job.clone()).or_insert(at);
        *due = at.min(*due);
    }

    /// The reconcile of a job begins.
    pub fn begun(&self, job: &JobName) {
        let due = self.lock().remove(job);
        if let Some(due) = due {
            let waited = (self.clock)().saturating_duration_since(due);
            self.wait.observe(waited.as_secs_f64());
        }
    }

    /// The job does not exist any more, so it waits for no reconcile.
    pub fn forget(&self, job: &JobName) {
        self.lock().remove(job);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<JobName, Instant>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collector for Queue {
    fn desc(&self) -> Vec<&Desc> {
        self.depth.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let now = (self.clock)();
        let depth = self.lock().values().filter(|due| **due <= now).count();
        self.depth.set(i64::try_from(depth).unwrap_or(i64::MAX));
        self.depth.collect()
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("due", &self.due)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::testing::{ManualClock, value};

    const DEPTH: &str = "roundhouse_operator_queue_depth";
    const WAITED: &str = "roundhouse_operator_queue_wait_seconds_sum";
    const BEGUN: &str = "roundhouse_operator_queue_wait_seconds_count";

    fn queue() -> (Registry, ManualClock, Queue) {
        let (registry, clock) = (Registry::new(), ManualClock::new());
        let queue = Queue::new(&registry, clock.clock()).unwrap();
        (registry, clock, queue)
    }

    #[test]
    fn queue_wait_lasts_from_earliest_due_time_to_reconcile() {
        let (registry, clock, queue) = queue();
        queue.due(&JobName::new("ml", "a"), Duration::from_secs(60));
        assert_eq!(value(&registry, DEPTH), Some(0.0), "it is due later");
        queue.due(&JobName::new("ml", "a"), Duration::from_secs(2));
        queue.due(&JobName::new("ml", "a"), Duration::from_secs(30));
        clock.advance(5);
        assert_eq!(value(&registry, DEPTH), Some(1.0));
        queue.begun(&JobName::new("ml", "a"));
        assert_eq!(value(&registry, WAITED), Some(3.0));
        assert_eq!(value(&registry, DEPTH), Some(0.0));
        queue.begun(&JobName::new("ml", "a"));
        assert_eq!(value(&registry, BEGUN), Some(1.0), "it was not due again");
    }

    #[test]
    fn deleted_job_does_not_wait_in_the_queue() {
        let (registry, clock, queue) = queue();
        queue.due(&JobName::new("ml", "a"), Duration::ZERO);
        queue.due(&JobName::new("other", "a"), Duration::ZERO);
        clock.advance(1);
        queue.forget(&JobName::new("ml", "a"));
        assert_eq!(value(&registry, DEPTH), Some(1.0));
        queue.begun(&JobName::new("ml", "a"));
        assert_eq!(value(&registry, BEGUN), Some(0.0));
    }
}
