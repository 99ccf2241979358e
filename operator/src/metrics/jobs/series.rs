//! The time series of the jobs. They are rebuilt for each scrape, so they end with their job.

use std::collections::HashMap;
use std::time::Instant;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{CounterVec, IntCounterVec, IntGaugeVec, Opts};

use super::record::Record;
use crate::job::JobKey;

/// One field per metric.
#[derive(Debug)]
pub(super) struct Series {
    jobs: IntGaugeVec,
    incidents: IntCounterVec,
    avoided: IntCounterVec,
    repeated_steps: IntCounterVec,
    workers: IntGaugeVec,
    gpus: IntGaugeVec,
    held: CounterVec,
    training: CounterVec,
}

impl Series {
    pub(super) fn new() -> Result<Self, prometheus::Error> {
        let job = ["namespace", "job"];
        let gauge = |name, help, labels: &[&str]| IntGaugeVec::new(Opts::new(name, help), labels);
        let count = |name, help, labels: &[&str]| IntCounterVec::new(Opts::new(name, help), labels);
        let seconds = |name, help| CounterVec::new(Opts::new(name, help), &job);
        Ok(Self {
            jobs: gauge(
                "roundhouse_jobs",
                "TrainingJobs by namespace and state: the word in the column STATE of kubectl get.",
                &["namespace", "state"],
            )?,
            incidents: count(
                "roundhouse_job_incidents_total",
                "Incidents of a job by reason, as it is known when the incident is counted.",
                &["namespace", "job", "reason"],
            )?,
            avoided: count(
                "roundhouse_job_node_avoided_total",
                "Times that a job began to avoid a node, or avoids it for longer, after a failure that is the node's.",
                &["namespace", "job", "node"],
            )?,
            repeated_steps: count(
                "roundhouse_job_repeated_steps_total",
                "Steps of a job that were committed, lost with all processes that had their state, and repeated.",
                &job,
            )?,
            workers: gauge(
                "roundhouse_job_workers",
                "Workers of a job: wanted; ready, which are in the lobby or train; active, which live in the newest \
                 generation.",
                &["namespace", "job", "state"],
            )?,
            gpus: gauge(
                "roundhouse_job_gpus",
                "GPUs that pods of a job hold: those of pods that are scheduled and have not ended.",
                &job,
            )?,
            held: seconds(
                "roundhouse_job_gpu_held_seconds_total",
                "GPU-seconds that pods of a job have held since this operator first saw the job.",
            )?,
            training: seconds(
                "roundhouse_job_gpu_training_seconds_total",
                "GPU-seconds held by workers while their generation trains. Divided by those held: the goodput.",
            )?,
        })
    }

    fn all(&self) -> [&dyn Collector; 8] {
        let Self {
            jobs,
            incidents,
            avoided,
            repeated_steps,
            workers,
            gpus,
            held,
            training,
        } = self;
        [
            jobs,
            incidents,
            avoided,
            repeated_steps,
            workers,
            gpus,
            held,
            training,
        ]
    }

    pub(super) fn desc(&self) -> Vec<&Desc> {
        self.all().into_iter().flat_map(Collector::desc).collect()
    }

    /// Rebuilds the series: those of these jobs at this moment, and no others.
    pub(super) fn of(&self, records: &HashMap<JobKey, Record>, now: Instant) -> Vec<MetricFamily> {
        self.jobs.reset();
        self.incidents.reset();
        self.avoided.reset();
        self.repeated_steps.reset();
        self.workers.reset();
        self.gpus.reset();
        self.held.reset();
        self.training.reset();
        for record in records.values() {
            if let Some(state) = record.state {
                self.jobs
                    .with_label_values(&[record.namespace.as_str(), state])
                    .inc();
            }
            if record.is_shown(now) {
                self.fill(record, now);
            }
        }
        self.all()
            .into_iter()
            .flat_map(Collector::collect)
            .collect()
    }

    fn fill(&self, record: &Record, now: Instant) {
        let (namespace, job) = (record.namespace.as_str(), record.name.as_str());
        for (reason, number) in &record.incidents {
            self.incidents
                .with_label_values(&[namespace, job, *reason])
                .inc_by(*number);
        }
        for (node, number) in &record.avoided {
            self.avoided
                .with_label_values(&[namespace, job, node.as_str()])
                .inc_by(*number);
        }
        // The series starts at 0, so that Prometheus sees the first increase.
        self.repeated_steps
            .with_label_values(&[namespace, job])
            .inc_by(record.repeated_steps);
        if let Some(workers) = &record.workers {
            for (state, number) in [
                ("wanted", workers.wanted),
                ("ready", workers.ready),
                ("active", workers.active),
            ] {
                self.workers
                    .with_label_values(&[namespace, job, state])
                    .set(number.into());
            }
        }
        let held = record.account.gpus().held;
        let (held_seconds, training_seconds) = record.account.seconds(now);
        self.gpus
            .with_label_values(&[namespace, job])
            .set(held.into());
        self.held
            .with_label_values(&[namespace, job])
            .inc_by(held_seconds);
        self.training
            .with_label_values(&[namespace, job])
            .inc_by(training_seconds);
    }
}
