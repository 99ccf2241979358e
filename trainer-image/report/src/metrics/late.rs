//! Metrics that are absent until their value is known. A 0 before that would look like a
//! measurement.

use std::sync::Once;

use prometheus::core::Collector;
use prometheus::{Gauge, Registry};

/// A metric that is registered once its value is known.
#[derive(Debug)]
pub(super) struct Late<M> {
    metric: M,
    registry: Registry,
    registered: Once,
}

impl<M: Collector + Clone + 'static> Late<M> {
    pub(super) fn new(registry: &Registry, metric: M) -> Self {
        Self {
            metric,
            registry: registry.clone(),
            registered: Once::new(),
        }
    }

    /// Registers the metric, if needed, and returns it.
    pub(super) fn known(&self) -> &M {
        self.registered.call_once(|| {
            // This fails only if the name is taken: a defect, but no reason to end a training.
            let _ = self.registry.register(Box::new(self.metric.clone()));
        });
        &self.metric
    }
}

/// A late gauge named `roundhouse_train_NAME`.
pub(super) fn late(registry: &Registry, name: &str, help: &str) -> prometheus::Result<Late<Gauge>> {
    let gauge = Gauge::new(format!("roundhouse_train_{name}"), help)?;
    Ok(Late::new(registry, gauge))
}
