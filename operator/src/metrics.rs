//! The operator's metrics: a struct on a passed registry; labels come from closed sets.

use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry,
};

/// The operator's metrics.
#[derive(Clone, Debug)]
pub struct Metrics {
    reconciles: IntCounterVec,
    reconcile_seconds: Histogram,
    actions: IntCounterVec,
    api_calls: IntCounterVec,
    start_seconds: HistogramVec,
}

impl Metrics {
    /// Registers them.
    ///
    /// # Errors
    /// A name is taken.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str, labels: &[&str]| {
            IntCounterVec::new(Opts::new(name, help), labels)
        };
        let metrics = Self {
            reconciles: counter(
                "roundhouse_operator_reconciles_total",
                "Reconciles by result: a plan's reason or an error.",
                &["result"],
            )?,
            reconcile_seconds: Histogram::with_opts(HistogramOpts::new(
                "roundhouse_operator_reconcile_seconds",
                "Time of one reconcile, its writes included.",
            ))?,
            actions: counter(
                "roundhouse_operator_actions_total",
                "Writes to children, by kind.",
                &["action"],
            )?,
            api_calls: counter(
                "roundhouse_operator_api_calls_total",
                "Calls to the API server, watches excluded.",
                &["verb", "resource", "outcome"],
            )?,
            start_seconds: HistogramVec::new(
                HistogramOpts::new(
                    "roundhouse_operator_job_start_seconds",
                    "From a job's acceptance to all its workers training.",
                )
                .buckets(vec![1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0]),
                &[],
            )?,
        };
        let info = IntGaugeVec::new(
            Opts::new(
                "roundhouse_operator_info",
                "Version of the operator, as a label.",
            ),
            &["version"],
        )?;
        info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        registry.register(Box::new(info))?;
        registry.register(Box::new(metrics.reconciles.clone()))?;
        registry.register(Box::new(metrics.reconcile_seconds.clone()))?;
        registry.register(Box::new(metrics.actions.clone()))?;
        registry.register(Box::new(metrics.api_calls.clone()))?;
        registry.register(Box::new(metrics.start_seconds.clone()))?;
        Ok(metrics)
    }

    /// A reconcile ended.
    pub fn reconcile(&self, result: &str, seconds: f64) {
        self.reconciles.with_label_values(&[result]).inc();
        self.reconcile_seconds.observe(seconds);
    }

    /// A child was written.
    pub fn action(&self, action: &str) {
        self.actions.with_label_values(&[action]).inc();
    }

    /// The API server was called.
    pub fn api_call(&self, verb: &str, resource: &str, outcome: &str) {
        self.api_calls
            .with_label_values(&[verb, resource, outcome])
            .inc();
    }

    /// All workers of a job train for the first time.
    pub fn job_started(&self, seconds: f64) {
        self.start_seconds
            .with_label_values::<&str>(&[])
            .observe(seconds);
    }
}
