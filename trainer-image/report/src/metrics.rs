//! The Prometheus metrics of one process, in base units. The agent adds the label of the rank.

use prometheus::{
    Counter, CounterVec, Encoder, Gauge, Histogram, HistogramOpts, IntCounter, IntGauge, Opts,
    Registry, TextEncoder,
};

use super::StepReport;
use super::meter::Meter;
use super::work::Work;
use crate::Evaluation;
use crate::sections::Section;

mod checkpoints;
mod late;
mod memory;
#[cfg(any(test, feature = "testing"))]
mod testing;
mod throughput;
mod transports;

pub use checkpoints::CheckpointMetrics;
use late::{Late, late};
pub use memory::MemoryMetrics;
pub use throughput::{DataMetrics, ThroughputMetrics};
pub use transports::TransportMetrics;

/// Start, factor and number of the buckets of step times: 0.5 ms to 33 s.
const STEP_BUCKETS: (f64, f64, usize) = (0.000_5, 2.0, 17);

/// One field per metric, all in one registry.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    step: IntGauge,
    epoch: IntGauge,
    loss: Late<Gauge>,
    learning_rate: Late<Gauge>,
    samples: Counter,
    step_seconds: Histogram,
    step_compute_seconds: Histogram,
    section_seconds: CounterVec,
    gradient_norm: Late<Gauge>,
    skipped_steps: IntGauge,
    pub(super) repeated_steps: IntGauge,
    loss_scale: Late<Gauge>,
    world_size: IntGauge,
    generation: IntGauge,
    state_bytes: IntCounter,
    process_group_failures: IntCounter,
    abandoned_threads: IntGauge,
    eval_accuracy: Late<Gauge>,
    eval_top5_accuracy: Late<Gauge>,
    eval_perplexity: Late<Gauge>,
    eval_loss: Late<Gauge>,
    throughput: ThroughputMetrics,
    pub(super) data: DataMetrics,
    pub(super) memory: MemoryMetrics,
    pub(super) transports: TransportMetrics,
    pub(super) checkpoints: CheckpointMetrics,
}

impl Metrics {
    /// Registers all metrics on a new registry.
    ///
    /// # Errors
    /// An error if two metrics have one name, which is a defect.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let metrics = Self {
            step: int_gauge(&registry, "step", "Committed optimizer steps")?,
            epoch: int_gauge(&registry, "epoch", "Epoch of the next step, from 0")?,
            loss: late(&registry, "loss", "Mean training loss of the last step")?,
            learning_rate: late(&registry, "learning_rate", "Learning rate of the last step")?,
            samples: counter(
                &registry,
                "samples_total",
                "Samples of committed steps, all ranks together",
            )?,
            step_seconds: histogram(&registry, "step_seconds", "Wall time of a step")?,
            step_compute_seconds: histogram(
                &registry,
                "step_compute_seconds",
                "What this rank spent on its own part of a step, without waiting for others",
            )?,
            section_seconds: register(
                &registry,
                CounterVec::new(
                    Opts::new(
                        "roundhouse_train_step_section_seconds_total",
                        "Time of steps by section; the gradient reduction overlaps backward, communication is \
                         what is left of it, the agreement at the end and the wait for slower ranks",
                    ),
                    &["section"],
                )?,
            )?,
            gradient_norm: late(&registry, "gradient_norm", "Norm of the last mean gradient")?,
            skipped_steps: int_gauge(
                &registry,
                "skipped_steps",
                "Committed steps whose loss or gradient was not finite, so that they did not change the weights",
            )?,
            repeated_steps: int_gauge(
                &registry,
                "repeated_steps",
                "Committed steps of this job that were lost with all processes that had their state, and repeated (rank 0)",
            )?,
            loss_scale: late(
                &registry,
                "loss_scale",
                "What the loss of the next step is multiplied by, with precision fp16",
            )?,
            world_size: int_gauge(&registry, "world_size", "Ranks of the generation")?,
            generation: int_gauge(&registry, "generation", "Generation, 0 in the lobby")?,
            state_bytes: int_counter(
                &registry,
                "state_moved_bytes_total",
                "Bytes of the state that have moved between this rank and others",
            )?,
            process_group_failures: int_counter(
                &registry,
                "process_group_failures_total",
                "Generations that broke while this process trained in them: a peer was lost",
            )?,
            abandoned_threads: int_gauge(
                &registry,
                "abandoned_threads",
                "Threads in calls that never returned, such as to a frozen host; each holds a connection",
            )?,
            eval_accuracy: late(
                &registry,
                "eval_accuracy",
                "Fraction of the test split that is classified correctly",
            )?,
            eval_top5_accuracy: late(
                &registry,
                "eval_top5_accuracy",
                "Fraction of the test split whose label has one of the five highest scores",
            )?,
            eval_perplexity: late(
                &registry,
                "eval_perplexity",
                "exp of the mean negative log-likelihood of a token of the test split",
            )?,
            eval_loss: late(&registry, "eval_loss", "Mean loss on the test split")?,
            throughput: ThroughputMetrics::new(&registry)?,
            data: DataMetrics::new(&registry)?,
            memory: MemoryMetrics::new(&registry)?,
            transports: TransportMetrics::new(&registry)?,
            checkpoints: CheckpointMetrics::new(&registry)?,
            registry,
        };
        for section in Section::ALL {
            metrics
                .section_seconds
                .with_label_values(&[section.as_str()])
                .reset();
        }
        Ok(metrics)
    }

    /// Records that this process joined a generation.
    pub fn set_place(&self, generation: u64, world_size: u32) {
        self.generation.set(generation.cast_signed());
        self.world_size.set(i64::from(world_size));
    }

    /// Sets the number of state bytes that have moved between ranks.
    pub(super) fn set_state_bytes(&self, num_bytes: u64) {
        raise(&self.state_bytes, num_bytes);
    }

    /// Sets the number of threads in calls that nothing waits for any more.
    pub(super) fn set_abandoned_threads(&self, number: u64) {
        self.abandoned_threads.set(number.cast_signed());
    }

    /// Counts the failure of this process' generation.
    pub(super) fn generation_lost(&self) {
        self.process_group_failures.inc();
    }

    /// Records a committed step that the meter has counted.
    pub fn observe(&self, report: &StepReport, work: &Work, meter: &Meter) {
        let StepReport {
            step,
            epoch,
            num_samples,
            loss,
            gradient_norm,
            learning_rate,
            skips,
            loss_scale,
            duration,
            sections,
        } = report;
        self.step.set(step.cast_signed());
        self.epoch.set(epoch.cast_signed());
        self.loss.known().set(*loss);
        self.learning_rate.known().set(*learning_rate);
        let world_size = u32::try_from(self.world_size.get()).unwrap_or(0);
        self.throughput
            .observe(work, meter, *num_samples, world_size);
        self.samples.inc_by(*num_samples as f64);
        self.step_seconds.observe(duration.as_secs_f64());
        self.step_compute_seconds
            .observe(sections.own_time().as_secs_f64());
        self.gradient_norm.known().set(*gradient_norm);
        self.skipped_steps.set(skips.total.cast_signed());
        if let Some(loss_scale) = loss_scale {
            self.loss_scale.known().set(loss_scale.scale);
        }
        for section in Section::ALL {
            self.section_seconds
                .with_label_values(&[section.as_str()])
                .inc_by(sections.spent(section).as_secs_f64());
        }
    }

    /// Records an evaluation. Metrics that the task does not compute stay absent.
    pub fn set_evaluation(&self, evaluation: &Evaluation) {
        let Evaluation {
            accuracy,
            top5,
            perplexity,
            loss,
            num_samples: _,
        } = *evaluation;
        for (gauge, value) in [
            (&self.eval_accuracy, accuracy),
            (&self.eval_top5_accuracy, top5),
            (&self.eval_perplexity, perplexity),
            (&self.eval_loss, Some(loss)),
        ] {
            if let Some(value) = value {
                gauge.known().set(value);
            }
        }
    }

    /// Renders all metrics as Prometheus text.
    ///
    /// # Errors
    /// An error if a metric cannot be encoded, which is a defect.
    pub fn to_text(&self) -> prometheus::Result<String> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        String::from_utf8(text).map_err(|error| prometheus::Error::Msg(error.to_string()))
    }
}

fn counter(registry: &Registry, name: &str, help: &str) -> prometheus::Result<Counter> {
    register(
        registry,
        Counter::new(format!("roundhouse_train_{name}"), help)?,
    )
}

/// Registers a histogram of step times.
fn histogram(registry: &Registry, name: &str, help: &str) -> prometheus::Result<Histogram> {
    let (start, factor, count) = STEP_BUCKETS;
    let buckets = prometheus::exponential_buckets(start, factor, count)?;
    let options = HistogramOpts::new(format!("roundhouse_train_{name}"), help).buckets(buckets);
    register(registry, Histogram::with_opts(options)?)
}

fn register<M: prometheus::core::Collector + Clone + 'static>(
    registry: &Registry,
    metric: M,
) -> prometheus::Result<M> {
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

fn int_counter(registry: &Registry, name: &str, help: &str) -> prometheus::Result<IntCounter> {
    register(
        registry,
        IntCounter::new(format!("roundhouse_train_{name}"), help)?,
    )
}

/// Raises a counter to a total that was counted elsewhere. A counter never decreases.
fn raise(counter: &IntCounter, total: u64) {
    counter.inc_by(total.saturating_sub(counter.get()));
}

fn gauge(registry: &Registry, name: &str, help: &str) -> prometheus::Result<Gauge> {
    register(
        registry,
        Gauge::new(format!("roundhouse_train_{name}"), help)?,
    )
}

fn int_gauge(registry: &Registry, name: &str, help: &str) -> prometheus::Result<IntGauge> {
    register(
        registry,
        IntGauge::new(format!("roundhouse_train_{name}"), help)?,
    )
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use roundhouse_elastic::{LossScale, Skips};

    use super::*;
    use crate::sections::Sections;
    use crate::transports::Transports;

    #[test]
    fn text_has_observed_values() {
        let metrics = Metrics::new().unwrap();
        metrics.set_place(3, 4);
        let report = StepReport {
            step: 7,
            epoch: 1,
            num_samples: 64,
            loss: 0.5,
            gradient_norm: 2.0,
            learning_rate: 0.1,
            skips: Skips {
                total: 5,
                in_a_row: 0,
            },
            loss_scale: None,
            duration: Duration::from_millis(3),
            sections: Sections::default(),
        };
        let mut meter = Meter::default();
        let start = Instant::now();
        let work = Work {
            tokens_per_sample: Some(10),
            flops_per_sample: Some(100.0),
            peak_flops: Some(16_000.0),
        };
        meter.add(&report, start);
        metrics.observe(&report, &work, &meter);
        assert!(!metrics.to_text().unwrap().contains("loss_scale"));
        let scaled = StepReport {
            loss_scale: Some(LossScale {
                scale: 512.0,
                clean_steps: 1,
            }),
            ..report
        };
        meter.add(&scaled, start + Duration::from_secs(1));
        metrics.observe(&scaled, &work, &meter);
        let text = metrics.to_text().unwrap();
        for line in [
            "roundhouse_train_step 7",
            "roundhouse_train_generation 3",
            "roundhouse_train_skipped_steps 5",
            "roundhouse_train_loss_scale 512",
            "roundhouse_train_world_size 4",
            "roundhouse_train_samples_total 128",
            "roundhouse_train_samples_per_second 64",
            "roundhouse_train_tokens_total 1280",
            "roundhouse_train_tokens_per_second 640",
            // 64 samples/s of 100 operations, of 4 ranks that can do 16,000 each.
            "roundhouse_train_model_flops_utilization_ratio 0.1",
            "roundhouse_train_data_wait_ratio 0",
            "roundhouse_train_communication_ratio 0",
            "roundhouse_train_corrupt_samples_total 0",
            "roundhouse_train_step_seconds_count 2",
            "roundhouse_train_step_compute_seconds_count 2",
            "roundhouse_train_step_seconds_bucket{le=\"0.004\"} 2",
            "roundhouse_train_step_section_seconds_total{section=\"communication\"} 0",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} is not in:\n{text}"
            );
        }
    }

    #[test]
    fn step_metrics_are_absent_before_the_first_step() {
        let text = Metrics::new().unwrap().to_text().unwrap();
        for name in [
            "tokens",
            "utilization",
            "loss",
            "learning_rate",
            "gradient_norm",
            "data_wait",
            "communication_ratio",
        ] {
            assert!(
                !text.contains(&format!("roundhouse_train_{name}")),
                "{text}"
            );
        }
    }

    #[test]
    fn transports_are_of_the_current_generation() {
        let metrics = Metrics::new().unwrap();
        let route = |route: &str| {
            Transports::parse(&format!(
                "w:7:19 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via {route}"
            ))
        };
        metrics.transports.set(&route("P2P/CUMEM"));
        metrics.transports.set(&route("NET/IB/0/GDRDMA"));
        let text = metrics.to_text().unwrap();
        let mut lines = text.lines().filter(|line| line.contains("nccl_transport{"));
        let line = "roundhouse_train_nccl_transport{transport=\"NET/IB/GDRDMA\"} 1";
        assert_eq!(lines.next(), Some(line));
        assert_eq!(lines.next(), None);
    }

    #[test]
    fn evaluation_is_absent_until_there_is_one() {
        let metrics = Metrics::new().unwrap();
        assert!(!metrics.to_text().unwrap().contains("eval"));
        let classified = |accuracy| Evaluation {
            accuracy: Some(accuracy),
            top5: Some(1.0),
            perplexity: None,
            loss: 1.0,
            num_samples: 4,
        };
        metrics.set_evaluation(&classified(0.5));
        metrics.set_evaluation(&classified(0.75));
        let text = metrics.to_text().unwrap();
        assert!(
            text.contains("roundhouse_train_eval_accuracy 0.75"),
            "{text}"
        );
        assert!(!text.contains("perplexity"), "{text}");
    }
}
