//! Metrics of the speed of training and its limits: tokens, waits, and utilization of the hardware.

use prometheus::{Counter, Gauge, Registry};

use super::late::{Late, late};
use super::{counter, gauge};
use crate::meter::Meter;
use crate::sections::Section;
use crate::work::Work;

#[derive(Debug)]
pub struct ThroughputMetrics {
    samples_per_second: Gauge,
    tokens_per_second: Late<Gauge>,
    tokens: Late<Counter>,
    utilization: Late<Gauge>,
    data_wait: Late<Gauge>,
    communication: Late<Gauge>,
}

impl ThroughputMetrics {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        Ok(Self {
            samples_per_second: gauge(
                registry,
                "samples_per_second",
                "Samples trained on per second over the last seconds, all ranks together",
            )?,
            tokens_per_second: late(
                registry,
                "tokens_per_second",
                "Tokens trained on per second over the last seconds, all ranks together",
            )?,
            tokens: Late::new(
                registry,
                Counter::new(
                    "roundhouse_train_tokens_total",
                    "Tokens of committed steps, all ranks together",
                )?,
            ),
            utilization: late(
                registry,
                "model_flops_utilization_ratio",
                "Floating-point operations that the model needs, as a share of the peak of all devices",
            )?,
            data_wait: late(
                registry,
                "data_wait_ratio",
                "Share of the time of steps over the last seconds that this rank waited for its samples",
            )?,
            communication: late(
                registry,
                "communication_ratio",
                "Share of the time of steps over the last seconds that went to communication which nothing \
                 overlaps, with the wait for slower ranks",
            )?,
        })
    }

    /// Records a committed step. Metrics of tokens and of utilization stay absent while they are
    /// unknown.
    pub(super) fn observe(&self, work: &Work, meter: &Meter, num_samples: u64, world_size: u32) {
        let samples_per_second = meter.samples_per_second();
        self.samples_per_second.set(samples_per_second);
        self.data_wait.known().set(meter.share(Section::Data));
        let communication = meter.share(Section::Communication);
        self.communication.known().set(communication);
        if let Some(tokens) = work.tokens_per_sample {
            let tokens_per_second = samples_per_second * tokens as f64;
            self.tokens_per_second.known().set(tokens_per_second);
            self.tokens.known().inc_by((num_samples * tokens) as f64);
        }
        if let Some(utilization) = work.utilization(samples_per_second, world_size) {
            self.utilization.known().set(utilization);
        }
    }
}

/// Metrics of the data that was read.
#[derive(Debug)]
pub struct DataMetrics {
    skipped: Counter,
    by_part: prometheus::CounterVec,
}

impl DataMetrics {
    pub(super) fn new(registry: &Registry) -> prometheus::Result<Self> {
        let by_part = prometheus::Opts::new(
            "roundhouse_train_mix_samples_total",
            "Samples that this rank has read from each data set of a mix",
        );
        Ok(Self {
            skipped: counter(
                registry,
                "corrupt_samples_total",
                "Corrupt samples that this rank has skipped, each replaced by another sample",
            )?,
            by_part: super::register(
                registry,
                prometheus::CounterVec::new(by_part, &["dataset"])?,
            )?,
        })
    }

    pub(crate) fn set(&self, num_skipped: u64, num_by_part: &[(String, u64)]) {
        let raise = |counter: &Counter, to: u64| {
            counter.inc_by((to as f64 - counter.get()).max(0.0));
        };
        raise(&self.skipped, num_skipped);
        for (name, number) in num_by_part {
            raise(&self.by_part.with_label_values(&[name.as_str()]), *number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_sets_of_a_mix_are_counted_separately() {
        let registry = Registry::new();
        let metrics = DataMetrics::new(&registry).unwrap();
        metrics.set(1, &[("web".to_owned(), 6), ("books".to_owned(), 2)]);
        metrics.set(3, &[("web".to_owned(), 9), ("books".to_owned(), 3)]);
        assert!((metrics.skipped.get() - 3.0).abs() < 1e-9);
        let of = |name| metrics.by_part.with_label_values(&[name]).get();
        assert!((of("web") - 9.0).abs() < 1e-9 && (of("books") - 3.0).abs() < 1e-9);
    }
}
