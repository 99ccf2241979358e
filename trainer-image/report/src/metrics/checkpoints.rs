//! Metrics of checkpoints and of the ledger. Metrics that only rank 0 knows are 0 or absent on the
//! other ranks.

use std::time::Duration;

use prometheus::{Counter, Gauge, IntCounter, IntGauge, Registry};
use roundhouse_contract::BestCheckpoint;

use super::late::{Late, late};
use super::{counter, gauge, int_counter, int_gauge, raise};

#[derive(Debug)]
pub struct CheckpointMetrics {
    step: IntGauge,
    timestamp: Late<Gauge>,
    ledger_step: Late<IntGauge>,
    bytes: IntGauge,
    best_step: Late<IntGauge>,
    best_value: Late<Gauge>,
    seconds: Gauge,
    stall_seconds: Gauge,
    read_bytes: IntCounter,
    failures: Counter,
    skipped: Counter,
    copy_step: Late<IntGauge>,
    second_copy_step: Late<IntGauge>,
    copy_seconds: Late<Gauge>,
    copy_stall_seconds: Late<Gauge>,
    copy_failures: Counter,
    copies_skipped: Counter,
}

impl CheckpointMetrics {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {
            step: int_gauge(
                registry,
                "checkpoint_step",
                "Committed steps that the newest checkpoint holds (rank 0)",
            )?,
            timestamp: late(
                registry,
                "checkpoint_timestamp_seconds",
                "When the newest checkpoint was complete, in seconds since 1970 (rank 0); time() minus this is its age",
            )?,
            ledger_step: Late::new(
                registry,
                IntGauge::new(
                    "roundhouse_train_ledger_step",
                    "Committed steps whose lines of the ledger are on disk for certain (rank 0)",
                )?,
            ),
            bytes: int_gauge(
                registry,
                "checkpoint_bytes",
                "Size of the last checkpoint, all ranks together (rank 0)",
            )?,
            best_step: Late::new(
                registry,
                IntGauge::new(
                    "roundhouse_train_best_checkpoint_step",
                    "Committed steps that the best checkpoint holds (rank 0)",
                )?,
            ),
            best_value: late(
                registry,
                "best_checkpoint_value",
                "What the evaluation of the best checkpoint found, by checkpoint.best.metric (rank 0)",
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
            read_bytes: int_counter(
                registry,
                "checkpoint_read_bytes_total",
                "Bytes of checkpoints that this process has read",
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
            copy_step: Late::new(
                registry,
                IntGauge::new(
                    "roundhouse_train_local_copy_step",
                    "Committed steps that the newest local copy of this process holds; 0 if it has none",
                )?,
            ),
            second_copy_step: Late::new(
                registry,
                IntGauge::new(
                    "roundhouse_train_second_copy_step",
                    "Committed steps of the newest state that other pods are known to hold for this rank's worker; 0 if there is none. Only with checkpoint.local.peerCopies",
                )?,
            ),
            copy_seconds: late(
                registry,
                "local_copy_seconds",
                "From the end of the step of the last local copy until it was complete",
            )?,
            copy_stall_seconds: late(
                registry,
                "local_copy_stall_seconds",
                "How long training stood still for the last local copy",
            )?,
            copy_failures: counter(
                registry,
                "local_copy_failures_total",
                "Local copies that could not be written",
            )?,
            copies_skipped: counter(
                registry,
                "local_copies_skipped_total",
                "Local copies that were due while another was being written",
            )?,
        })
    }

    pub(crate) fn begun(&self, stall: Duration) {
        self.stall_seconds.set(stall.as_secs_f64());
    }

    pub(crate) fn best(&self, best: &BestCheckpoint) {
        self.best_step.known().set(best.step.cast_signed());
        self.best_value.known().set(best.value);
    }

    /// Records a complete checkpoint. `at` is the time, RFC 3339.
    pub(crate) fn saved(&self, step: u64, bytes: u64, duration: Duration, at: &str) {
        self.found(step, at);
        self.bytes.set(bytes.cast_signed());
        self.seconds.set(duration.as_secs_f64());
    }

    pub(crate) fn found(&self, step: u64, at: &str) {
        self.step.set(step.cast_signed());
        if let Ok(at) = at.parse::<jiff::Timestamp>() {
            self.timestamp.known().set(at.as_second() as f64);
        }
    }

    /// Sets the last step with a durable ledger line.
    pub(crate) fn ledger_is_durable(&self, step: u64) {
        self.ledger_step.known().set(step.cast_signed());
    }

    pub(crate) fn read(&self, num_bytes: u64) {
        raise(&self.read_bytes, num_bytes);
    }

    pub(crate) fn failed(&self) {
        self.failures.inc();
    }

    pub(crate) fn skipped(&self) {
        self.skipped.inc();
    }

    pub(crate) fn copy_begun(&self, stall: Duration) {
        self.copy_stall_seconds.known().set(stall.as_secs_f64());
    }

    pub(crate) fn has_copy(&self, step: u64) {
        self.copy_step.known().set(step.cast_signed());
    }

    pub(crate) fn has_second_copy(&self, step: u64) {
        self.second_copy_step.known().set(step.cast_signed());
    }

    pub(crate) fn copied(&self, duration: Duration) {
        self.copy_seconds.known().set(duration.as_secs_f64());
    }

    pub(crate) fn copy_failed(&self) {
        self.copy_failures.inc();
    }

    pub(crate) fn copy_skipped(&self) {
        self.copies_skipped.inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoint_time_and_ledger_step_are_absent_until_known() {
        let registry = Registry::new();
        let metrics = CheckpointMetrics::new(&registry).unwrap();
        let has = |name: &str| {
            let families = registry.gather();
            families.iter().any(|family| family.name().ends_with(name))
        };
        assert!(!has("checkpoint_timestamp_seconds") && !has("ledger_step"));
        metrics.found(3, "1970-01-01T00:01:40Z");
        metrics.saved(7, 10, Duration::from_secs(2), "1970-01-01T00:05:00Z");
        metrics.ledger_is_durable(9);
        metrics.ledger_is_durable(11);
        assert!(has("checkpoint_timestamp_seconds") && has("ledger_step"));
        assert_eq!(metrics.step.get(), 7);
        assert_eq!(metrics.ledger_step.known().get(), 11);
        assert!((metrics.timestamp.known().get() - 300.0).abs() < f64::EPSILON);
    }

    #[test]
    fn read_bytes_only_grow() {
        let metrics = CheckpointMetrics::new(&Registry::new()).unwrap();
        for total in [5, 5, 3, 8] {
            metrics.read(total);
        }
        assert_eq!(metrics.read_bytes.get(), 8);
    }
}
