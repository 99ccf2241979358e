//! Metrics of checkpoints. What only rank 0 knows stays 0 on the others.

use std::time::Duration;

use prometheus::{Counter, Gauge, IntGauge, Registry};

use super::{counter, gauge, int_gauge};

/// One field per metric.
#[derive(Debug)]
pub struct CheckpointMetrics {
    step: IntGauge,
    bytes: IntGauge,
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
