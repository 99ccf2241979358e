//! The operator's metrics: structs on a passed registry. Labels come from closed sets, but for names of namespaces,
//! jobs and nodes.
//!
//! `work` counts what the operator does, `queue` how long jobs wait for that, `api` the calls to the API server,
//! `heard` how old the caches are, `jobs` how the jobs fare, and `process` what the process itself takes. The series of a job go away with the job. `docs/reference/metrics.md` lists them all.

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

/// What tells the time: the operator's own clock, or a test's.
pub type Clock = Arc<dyn Fn() -> Instant + Send + Sync>;

/// All metrics of one operator.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// What the operator does.
    pub work: Work,
    /// Jobs that wait for a reconcile.
    pub queue: Queue,
    /// Calls to the API server.
    pub api: Api,
    /// When watches were heard.
    pub watch_ages: WatchAges,
    /// How the jobs fare.
    pub jobs: Jobs,
}

impl Metrics {
    /// Registers all metrics.
    ///
    /// # Errors
    /// A name is taken or not allowed.
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
