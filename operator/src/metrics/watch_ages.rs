//! When each watch last received anything. A cache may lag behind the API server by the age of its
//! watch. The cache of a watch that broke may lack any change until the watch has caught up,
//! because etcd may have been restored.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{GaugeVec, Opts, Registry};

use super::Clock;
use super::labels::Watched;

/// The ages of the watches that have begun.
#[derive(Clone)]
pub struct WatchAges {
    at: Arc<Mutex<BTreeMap<Watched, Instant>>>,
    broken: Arc<Mutex<BTreeSet<Watched>>>,
    clock: Clock,
    age: GaugeVec,
}

impl WatchAges {
    pub(super) fn new(registry: &Registry, clock: Clock) -> Result<Self, prometheus::Error> {
        let age = Opts::new(
            "roundhouse_operator_watch_age_seconds",
            "Time since the watch of a kind last received anything: an event, a bookmark, or the answer to its restart. From 90 s on, and from a break until the watch has received something again, the operator deletes nothing and counts no incident before it has asked the API server.",
        );
        let ages = Self {
            at: Arc::default(),
            broken: Arc::default(),
            clock,
            age: GaugeVec::new(age, &["kind"])?,
        };
        registry.register(Box::new(ages.clone()))?;
        Ok(ages)
    }

    /// A watch begins, or received something from the API server.
    pub fn received(&self, kind: Watched) {
        let now = (self.clock)();
        self.lock().insert(kind, now);
    }

    /// A watch broke, so its cache may lack changes.
    pub fn break_off(&self, kind: Watched) {
        self.lock_broken().insert(kind);
    }

    /// The cache of a watch is filled again, or the watch continues where it broke off.
    pub fn catch_up(&self, kind: Watched) {
        self.lock_broken().remove(&kind);
    }

    /// A watch that broke and has not caught up, and the time since it last received anything. Only
    /// kinds count whose versions the operator compares with the API server's.
    #[must_use]
    pub fn broken(&self) -> Option<(Watched, Duration)> {
        let broken = self.lock_broken();
        let kind = *broken.iter().find(|kind| kind.is_confirmed())?;
        let at = *self.lock().get(&kind)?;
        Some((kind, (self.clock)().saturating_duration_since(at)))
    }

    /// The watch with the highest age, among those that plans depend on.
    #[must_use]
    pub fn oldest(&self) -> Option<(Watched, Duration)> {
        let now = (self.clock)();
        let all = self.lock();
        let all = all.iter().filter(|(kind, _)| kind.decides());
        let ages = all.map(|(kind, at)| (*kind, now.saturating_duration_since(*at)));
        ages.max_by_key(|(_, age)| *age)
    }

    fn lock_broken(&self) -> MutexGuard<'_, BTreeSet<Watched>> {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Watched, Instant>> {
        self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collector for WatchAges {
    fn desc(&self) -> Vec<&Desc> {
        self.age.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let now = (self.clock)();
        for (kind, at) in self.lock().iter() {
            let age = now.saturating_duration_since(*at);
            let series = self.age.with_label_values(&[kind.as_str()]);
            series.set(age.as_secs_f64());
        }
        self.age.collect()
    }
}

impl fmt::Debug for WatchAges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchAges")
            .field("at", &self.at)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::testing::{ManualClock, value};

    #[test]
    fn longest_silent_watch_is_named() {
        let (registry, clock) = (Registry::new(), ManualClock::new());
        let ages = WatchAges::new(&registry, clock.clock()).unwrap();
        assert_eq!(ages.oldest(), None, "none has begun");
        let age = |kind: &str| {
            let series = format!("roundhouse_operator_watch_age_seconds{{kind=\"{kind}\"}}");
            value(&registry, &series)
        };
        for kind in [Watched::Pods, Watched::TrainingJobs, Watched::Nodes] {
            ages.received(kind);
        }
        clock.advance(60);
        ages.received(Watched::TrainingJobs);
        clock.advance(30);
        let oldest = |kind, seconds| Some((kind, Duration::from_secs(seconds)));
        assert_eq!(ages.oldest(), oldest(Watched::Pods, 90));
        assert_eq!((age("pods"), age("trainingjobs")), (Some(90.0), Some(30.0)));
        assert_eq!(age("services"), None, "it is not watched");
        ages.received(Watched::Pods);
        let expected = oldest(Watched::TrainingJobs, 30);
        assert_eq!(ages.oldest(), expected, "cordoned nodes decide nothing");
    }

    #[test]
    fn broken_watch_stays_broken_until_it_catches_up() {
        let (registry, clock) = (Registry::new(), ManualClock::new());
        let ages = WatchAges::new(&registry, clock.clock()).unwrap();
        for kind in [Watched::Pods, Watched::TrainingJobs, Watched::Services] {
            ages.received(kind);
        }
        ages.break_off(Watched::Services);
        assert_eq!(
            ages.broken(),
            None,
            "the API server is not asked about Services"
        );
        ages.break_off(Watched::Pods);
        ages.break_off(Watched::TrainingJobs);
        clock.advance(2);
        // A watch that has only started again has not caught up.
        ages.received(Watched::Pods);
        ages.catch_up(Watched::TrainingJobs);
        assert_eq!(ages.broken(), Some((Watched::Pods, Duration::ZERO)));
        ages.catch_up(Watched::Pods);
        assert_eq!(ages.broken(), None);
    }
}
