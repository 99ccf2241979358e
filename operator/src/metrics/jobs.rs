//! How the jobs fare. The watch of the jobs tells which ones there are, a reconcile how each of them is. A job that is
//! gone is forgotten, and a reconcile that is late with its news does not bring it back.

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

/// What is known of all jobs.
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

    /// Applies an event of the watch of the jobs: a job that is deleted has no series any more.
    pub fn apply(&self, event: &Event<JobIdentity>) {
        let new = |job: &JobIdentity| Record::new(job.namespace.clone(), job.name.clone());
        self.lock().apply(event, new);
    }

    /// The job has this status: its state is what the status says.
    pub fn show(&self, job: &JobKey, status: &TrainingJobStatus) {
        if let Some(record) = self.lock().get_mut(job) {
            record.show(status);
        }
    }

    /// A plan was made: the job has workers as this status says, and its pods hold these GPUs.
    pub fn see(&self, job: &JobKey, status: &TrainingJobStatus, gpus: Gpus) {
        let now = (self.clock)();
        if let Some(record) = self.lock().get_mut(job) {
            record.see(status, gpus, now);
        }
    }

    /// A status was stored in place of another, at this time by the clock of the API.
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
        // The lock is held until all series are read: two scrapes at once would mix theirs.
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
