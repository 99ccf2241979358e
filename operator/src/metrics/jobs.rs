//! Metrics of the jobs. The watch of the jobs reports which jobs exist, and each reconcile reports
//! the status of its job. The record of a deleted job is dropped, and a late reconcile does not
//! restore it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use kube::runtime::watcher::Event;
use prometheus::Registry;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use roundhouse_api::TrainingJobStatus;
use roundhouse_planner::JobIdentity;

use super::Clock;
use crate::job::JobKey;
use crate::job::existing::ExistingJobs;

pub mod gpus;
mod milestones;
mod record;
mod series;

use gpus::Gpus;
use milestones::Milestones;
use record::Record;
use series::Series;

/// The records of all jobs, and the metrics made from them.
#[derive(Clone)]
pub struct Jobs {
    records: Arc<Mutex<ExistingJobs<Record>>>,
    series: Arc<Series>,
    milestones: Milestones,
    clock: Clock,
}

impl Jobs {
    pub(super) fn new(registry: &Registry, clock: Clock) -> Result<Self, prometheus::Error> {
        let jobs = Self {
            records: Arc::default(),
            series: Arc::new(Series::new()?),
            milestones: Milestones::new(registry)?,
            clock,
        };
        registry.register(Box::new(jobs.clone()))?;
        Ok(jobs)
    }

    /// Applies an event of the watch of the jobs. A deleted job has no series any more.
    pub fn apply(&self, event: &Event<JobIdentity>) {
        let new = |job: &JobIdentity| Record::new(job.namespace.clone(), job.name.clone());
        self.lock().apply(event, new);
    }

    /// Takes the state of the job from its status.
    pub fn show(&self, job: &JobKey, status: &TrainingJobStatus) {
        if let Some(record) = self.lock().get_mut(job) {
            record.show(status);
        }
    }

    /// Takes the workers of the job from the status of a plan. Its pods hold these GPUs.
    pub fn see(&self, job: &JobKey, status: &TrainingJobStatus, gpus: Gpus) {
        let now = (self.clock)();
        if let Some(record) = self.lock().get_mut(job) {
            record.see(status, gpus, now);
        }
    }

    /// The API server stored a new status of the job. `time`: wall-clock time of the write.
    pub fn stored(
        &self,
        job: &JobKey,
        before: &TrainingJobStatus,
        after: &TrainingJobStatus,
        time: Timestamp,
    ) {
        let now = (self.clock)();
        let mut records = self.lock();
        let Some(record) = records.get_mut(job) else {
            return;
        };
        for (milestone, took) in record.stored(before, after, now, time) {
            self.milestones.reached(milestone, took);
        }
    }

    fn lock(&self) -> MutexGuard<'_, ExistingJobs<Record>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Collector for Jobs {
    fn desc(&self) -> Vec<&Desc> {
        self.series.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let now = (self.clock)();
        // Two scrapes at once would mix their series, so the lock is held until all are read.
        let records = self.lock();
        self.series.of(records.all(), now)
    }
}

impl fmt::Debug for Jobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jobs")
            .field("records", &self.records)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
