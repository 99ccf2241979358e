//! The operator's metrics: structs on a passed registry. Labels come from closed sets, except the
//! names of namespaces, jobs and nodes.
//!
//! `work` counts reconciles and writes, `queue` measures how long jobs wait for a reconcile, `api`
//! counts the calls to the API server, `watch_ages` measures how old the caches are, `jobs`
//! describes the jobs, and `process` describes the operator's own process. The series of a job end
//! with the job. `docs/reference/metrics.md` lists all metrics.

use std::sync::Arc;
use std::time::Instant;

use prometheus::core::Collector;
use prometheus::{Histogram, HistogramOpts, IntCounterVec, IntGaugeVec, Opts, Registry};

pub mod api;
pub mod jobs;
pub mod labels;
mod process;
pub mod queue;
pub mod watch_ages;
pub mod work;

use api::Api;
use jobs::Jobs;
use queue::Queue;
use watch_ages::WatchAges;
use work::Work;

/// Returns the current time: of the operator's own clock, or of a test's clock.
pub type Clock = Arc<dyn Fn() -> Instant + Send + Sync>;

/// All metrics of one operator.
#[derive(Clone, Debug)]
pub struct Metrics {
    pub work: Work,
    pub queue: Queue,
    pub api: Api,
    pub watch_ages: WatchAges,
    pub jobs: Jobs,
}

impl Metrics {
    /// Creates all metrics and registers them.
    ///
    /// # Errors
    /// The registry has a metric of the same name, or the name of a metric is invalid.
    pub fn new(registry: &Registry, clock: Clock) -> Result<Self, prometheus::Error> {
        let info = Opts::new(
            "roundhouse_operator_info",
            "Version of the operator, as a label.",
        );
        let info = register(registry, IntGaugeVec::new(info, &["version"])?)?;
        info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        process::add(registry)?;
        Ok(Self {
            work: Work::new(registry)?,
            queue: Queue::new(registry, Arc::clone(&clock))?,
            api: Api::new(registry)?,
            watch_ages: WatchAges::new(registry, Arc::clone(&clock))?,
            jobs: Jobs::new(registry, clock)?,
        })
    }
}

/// Adds a metric to a registry, and returns it.
fn register<M: Collector + Clone + 'static>(
    registry: &Registry,
    metric: M,
) -> Result<M, prometheus::Error> {
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

fn counter(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: &[&str],
) -> Result<IntCounterVec, prometheus::Error> {
    register(registry, IntCounterVec::new(Opts::new(name, help), labels)?)
}

/// A histogram without labels. `buckets`: upper bounds in seconds.
fn histogram(
    registry: &Registry,
    name: &str,
    help: &str,
    buckets: &[f64],
) -> Result<Histogram, prometheus::Error> {
    let options = HistogramOpts::new(name, help).buckets(buckets.to_vec());
    register(registry, Histogram::with_opts(options)?)
}

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
