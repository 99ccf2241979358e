//! Metrics of checkpoints. What only rank 0 knows stays 0 on the others.

use std::time::Duration;

use prometheus::{Counter, Gauge, IntGauge, Registry};
use roundhouse_contract::BestCheckpoint;

use super::{counter, gauge, int_gauge, unregistered};

/// One field per metric.
#[derive(Debug)]
pub struct CheckpointMetrics {
    step: IntGauge,
    bytes: IntGauge,
    best_step: IntGauge,
    best_value: Gauge,
    registry: Registry,
    seconds: Gauge,
    stall_seconds: Gauge,
    read_bytes: IntGauge,
    failures: Counter,
    skipped: Counter,
}

impl CheckpointMetrics {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {
            step: int_gauge(
                registry,
                "checkpoint_step",
                "Committed steps that the newest checkpoint holds (rank 0)",
            )?,
            bytes: int_gauge(
                registry,
                "checkpoint_bytes",
                "Size of the last checkpoint, all ranks together (rank 0)",
            )?,
            best_step: IntGauge::new(
                "roundhouse_train_best_checkpoint_step",
                "Committed steps that the best checkpoint holds (rank 0)",
            )?,
            best_value: unregistered(
                "best_checkpoint_value",
                "What the evaluation of the best checkpoint found, by checkpoint.best.metric (rank 0)",
            )?,
            registry: registry.clone(),
            seconds: gauge(
                registry,
                "checkpoint_seconds",
                "From the end of the step of the last checkpoint until it was complete (rank 0)",
            )?,
            stall_seconds: gauge(
                registry,
                "checkpoint_stall_seconds",
                "How long training stood still for the last checkpoint",
            )?,
            read_bytes: int_gauge(
                registry,
                "checkpoint_read_bytes",
                "Bytes of checkpoints that this process has read since its start",
            )?,
            failures: counter(
                registry,
                "checkpoint_failures_total",
                "Checkpoints that could not be saved",
            )?,
            skipped: counter(
                registry,
                "checkpoints_skipped_total",
                "Checkpoints that were due while another was being written",
            )?,
        })
    }

    pub(in crate::report) fn begun(&self, stall: Duration) {
        self.stall_seconds.set(stall.as_secs_f64());
    }

    /// Absent, not 0, until there is one.
    pub(in crate::report) fn best(&self, best: &BestCheckpoint) {
        self.best_step.set(best.step.cast_signed());
        self.best_value.set(best.value);
        // Fails from the second time on, when they are registered already.
        let _ = self.registry.register(Box::new(self.best_step.clone()));
        let _ = self.registry.register(Box::new(self.best_value.clone()));
    }

    pub(in crate::report) fn saved(&self, step: u64, bytes: u64, duration: Duration) {
        self.step.set(step.cast_signed());
        self.bytes.set(bytes.cast_signed());
        self.seconds.set(duration.as_secs_f64());
    }

    pub(in crate::report) fn found(&self, step: u64) {
        self.step.set(step.cast_signed());
    }

    pub(in crate::report) fn read(&self, num_bytes: u64) {
        self.read_bytes.set(num_bytes.cast_signed());
    }

    pub(in crate::report) fn failed(&self) {
        self.failures.inc();
    }

    pub(in crate::report) fn skipped(&self) {
        self.skipped.inc();
    }
}
