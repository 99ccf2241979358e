//! When each watch was last heard of. The age is what the caches may lag behind.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{GaugeVec, Opts, Registry};

use super::Clock;
use super::labels::Watched;

/// The watches that have begun.
#[derive(Clone)]
pub struct WatchAges {
    at: Arc<Mutex<BTreeMap<Watched, Instant>>>,
    clock: Clock,
    age: GaugeVec,
}

impl WatchAges {
    pub(super) fn new(registry: &Registry, clock: Clock) -> Result<Self, prometheus::Error> {
        let age = Opts::new(
            "roundhouse_operator_watch_age_seconds",
            "Time since the watch of a kind last told anything: an event, a bookmark, or that it has begun anew. From 90 s on the operator deletes nothing and counts no incident before it has asked the API server.",
        );
        let heard = Self {
            at: Arc::default(),
            clock,
            age: GaugeVec::new(age, &["kind"])?,
        };
        registry.register(Box::new(heard.clone()))?;
        Ok(heard)
    }

    /// A watch begins, or was heard.
    pub fn hear(&self, kind: Watched) {
        let now = (self.clock)();
        self.lock().insert(kind, now);
    }

    /// The watch that plans depend on and that was not heard for the longest time.
    #[must_use]
    pub fn oldest(&self) -> Option<(Watched, Duration)> {
        let now = (self.clock)();
        let all = self.lock();
        let all = all.iter().filter(|(kind, _)| kind.decides());
        let ages = all.map(|(kind, at)| (*kind, now.saturating_duration_since(*at)));
        ages.max_by_key(|(_, age)| *age)
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
    fn the_watch_that_was_not_heard_for_the_longest_time_is_named() {
        let (registry, clock) = (Registry::new(), ManualClock::new());
        let heard = WatchAges::new(&registry, clock.clock()).unwrap();
        assert_eq!(heard.oldest(), None, "none has begun");
        let age = |kind: &str| {
            let series = format!("roundhouse_operator_watch_age_seconds{{kind=\"{kind}\"}}");
            value(&registry, &series)
        };
        for kind in [Watched::Pods, Watched::TrainingJobs, Watched::Nodes] {
            heard.hear(kind);
        }
        clock.advance(60);
        heard.hear(Watched::TrainingJobs);
        clock.advance(30);
        let oldest = |kind, seconds| Some((kind, Duration::from_secs(seconds)));
        assert_eq!(heard.oldest(), oldest(Watched::Pods, 90));
        assert_eq!((age("pods"), age("trainingjobs")), (Some(90.0), Some(30.0)));
        assert_eq!(age("services"), None, "it is not watched");
        heard.hear(Watched::Pods);
        let expected = oldest(Watched::TrainingJobs, 30);
        assert_eq!(heard.oldest(), expected, "cordoned nodes decide nothing");
    }
}
