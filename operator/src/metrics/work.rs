//! Counts the operator's work: reconciles, writes to the jobs' objects and broken watches. Also
//! shows whether this operator leads.

use std::time::Duration;

use prometheus::{HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Registry};

use super::labels::Watched;
use super::{counter, register};

/// Upper bounds in seconds: a plan alone takes less than a millisecond, and a write with its
/// retries up to five seconds.
pub(super) const SECONDS: [f64; 12] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0,
];

/// One field per metric.
#[derive(Clone, Debug)]
pub struct Work {
    reconciles: IntCounterVec,
    reconcile_seconds: HistogramVec,
    actions: IntCounterVec,
    watch_restarts: IntCounterVec,
    events_dropped: IntCounter,
    leader: IntGauge,
}

impl Work {
    pub(super) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let seconds = HistogramOpts::new(
            "roundhouse_operator_reconcile_seconds",
            "Time of one reconcile with its writes, by result.",
        );
        let seconds = HistogramVec::new(seconds.buckets(SECONDS.to_vec()), &["result"])?;
        let leader = IntGauge::new(
            "roundhouse_operator_leader",
            "1 while this process works on jobs, 0 otherwise.",
        )?;
        let events_dropped = IntCounter::new(
            "roundhouse_operator_events_dropped_total",
            "Events that were not published because too many waited.",
        )?;
        let work = Self {
            reconciles: counter(
                registry,
                "roundhouse_operator_reconciles_total",
                "Reconciles by result: the reason of the plan, why there is none yet (WatchLate, NamespaceUnknown, PodGroupsUnknown, JobGone), or the step that failed (Apply, Confirm, Stale, Report, Build, Random), or Panicked.",
                &["result"],
            )?,
            reconcile_seconds: register(registry, seconds)?,
            actions: counter(
                registry,
                "roundhouse_operator_actions_total",
                "Writes to pods, Services and NetworkPolicies, and deletions of jobs whose time is over, that succeeded, by kind of action.",
                &["action"],
            )?,
            watch_restarts: counter(
                registry,
                "roundhouse_operator_watch_restarts_total",
                "Times that a watch broke and the operator restarted it, by resource.",
                &["resource"],
            )?,
            events_dropped: register(registry, events_dropped)?,
            leader: register(registry, leader)?,
        };
        for resource in Watched::ALL {
            work.watch_restarts.with_label_values(&[resource.as_str()]);
        }
        Ok(work)
    }

    /// Counts a reconcile that ended. `result`: name of the plan's reason or of the error's
    /// variant.
    pub fn reconciled(&self, result: &str, took: Duration) {
        self.reconciles.with_label_values(&[result]).inc();
        self.reconcile_seconds
            .with_label_values(&[result])
            .observe(took.as_secs_f64());
    }

    /// Counts a write to an object of a job. `action`: name of the action's variant.
    pub fn acted(&self, action: &'static str) {
        self.actions.with_label_values(&[action]).inc();
    }

    /// Counts a watch that broke and that the operator starts again.
    pub fn watch_broke(&self, resource: Watched) {
        self.watch_restarts
            .with_label_values(&[resource.as_str()])
            .inc();
    }

    /// Counts events that were dropped from a full queue.
    pub fn events_dropped(&self, count: u64) {
        self.events_dropped.inc_by(count);
    }

    /// Shows whether this process works on jobs.
    pub fn lead(&self, leads: bool) {
        self.leader.set(leads.into());
    }
}
