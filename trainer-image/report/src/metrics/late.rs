//! Metrics that are absent until their value is known. A 0 before that would be drawn as if it had been measured.

use std::sync::Once;

use prometheus::core::Collector;
use prometheus::{Gauge, Registry};

/// A metric that its registry gets once its value is known.
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

    /// The metric, which is there from now on.
    pub(super) fn known(&self) -> &M {
        self.registered.call_once(|| {
            // Refused only if the name is taken: a defect, and no reason to end a training.
            let _ = self.registry.register(Box::new(self.metric.clone()));
        });
        &self.metric
    }
}

/// A gauge of that kind, named `roundhouse_train_NAME`.
pub(super) fn late(registry: &Registry, name: &str, help: &str) -> prometheus::Result<Late<Gauge>> {
    let gauge = Gauge::new(format!("roundhouse_train_{name}"), help)?;
    Ok(Late::new(registry, gauge))
}
