//! How the jobs fare. The watch of the jobs tells which ones there are, a reconcile how each of them is. A job that is
//! gone is forgotten, and a reconcile that is late with its news does not bring it back.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use kube::runtime::watcher::Event;
use prometheus::Registry;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use roundhouse_api::TrainingJobStatus;

use super::Clock;
use crate::job::JobKey;

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
    state: Arc<Mutex<State>>,
    series: Arc<Series>,
    milestones: Milestones,
    clock: Clock,
}

#[derive(Debug, Default)]
struct State {
    records: HashMap<JobKey, Record>,
    /// Those of a list in progress. Jobs that are not in it are gone when it is complete.
    listed: HashSet<JobKey>,
}

impl Jobs {
    pub(super) fn new(registry: &Registry, clock: Clock) -> Result<Self, prometheus::Error> {
        let jobs = Self {
            state: Arc::default(),
            series: Arc::new(Series::new()?),
            milestones: Milestones::new(registry)?,
            clock,
        };
        registry.register(Box::new(jobs.clone()))?;
        Ok(jobs)
    }

    /// Takes in an event of the watch of the jobs, reduced to the job and its name.
    pub fn take(&self, event: Event<(JobKey, String)>) {
        let mut state = self.lock();
        match event {
            Event::Init => state.listed.clear(),
            Event::InitApply((job, name)) => {
                state.listed.insert(job.clone());
                state.add(job, name);
            }
            Event::InitDone => {
                let State { records, listed } = &mut *state;
                records.retain(|job, _| listed.contains(job));
                listed.clear();
            }
            Event::Apply((job, name)) => state.add(job, name),
            Event::Delete((job, _)) => {
                state.records.remove(&job);
            }
        }
    }

    /// The job has this status: its state is what the status says.
    pub fn show(&self, job: &JobKey, status: &TrainingJobStatus) {
        if let Some(record) = self.lock().records.get_mut(job) {
            record.show(status);
        }
    }

    /// A plan was made: the job has workers as this status says, and its pods hold these GPUs.
    pub fn see(&self, job: &JobKey, status: &TrainingJobStatus, gpus: Gpus) {
        let now = (self.clock)();
        if let Some(record) = self.lock().records.get_mut(job) {
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
        let mut state = self.lock();
        let Some(record) = state.records.get_mut(job) else {
            return;
        };
        for (milestone, took) in record.stored(before, after, now, time) {
            self.milestones.reached(milestone, took);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn add(&mut self, job: JobKey, name: String) {
        let namespace = job.namespace.clone();
        self.records
            .entry(job)
            .or_insert_with(|| Record::new(namespace, name));
    }
}

impl Collector for Jobs {
    fn desc(&self) -> Vec<&Desc> {
        self.series.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let now = (self.clock)();
        // The lock is held until all series are read: two scrapes at once would mix theirs.
        let state = self.lock();
        self.series.of(&state.records, now)
    }
}

impl fmt::Debug for Jobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jobs")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
