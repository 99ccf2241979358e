//! How far jobs have come: asked of rank 0's agent over HTTP, to be shown and for nothing else. Best
//! effort, beside the reconciles.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::iter;
use kube::runtime::reflector::ObjectRef;
use roundhouse_api::TrainingJob;
use roundhouse_contract::{Progress as Told, ports};
use roundhouse_planner::ProgressSample;
use tokio::sync::mpsc::Sender;

use crate::ask::Agents;
use crate::cache::Job;
use crate::context::Context;

const INTERVAL: Duration = Duration::from_secs(3);
const AT_ONCE: usize = 32;
const MAX_SILENT: u32 = 20;

/// Jobs that train, and what each last told.
#[derive(Debug, Default)]
pub struct Progress {
    jobs: Mutex<HashMap<Job, Followed>>,
}

#[derive(Clone, Debug)]
struct Followed {
    address: String,
    wake: ObjectRef<TrainingJob>,
    last: Option<ProgressSample>,
    /// Questions in a row that had no answer.
    silent: u32,
}

impl Progress {
    /// What a job last told.
    #[must_use]
    pub fn of(&self, job: &Job) -> Option<ProgressSample> {
        self.lock()
            .get(job)
            .and_then(|followed| followed.last.clone())
    }

    /// Asks the job from now on.
    pub fn follow(&self, key: &Job, job: &TrainingJob, context: &Context) {
        let pods = context.pods.of(key);
        let places = pods.values().filter(|entry| !entry.value.deleting);
        let places = places.filter_map(|entry| Some((entry.value.membership.as_ref()?, entry)));
        let first = places
            .filter(|(place, _)| place.node_rank == 0)
            .max_by_key(|(place, _)| place.generation);
        let Some(address) = first.and_then(|(_, entry)| entry.value.ip.clone()) else {
            return;
        };
        let mut jobs = self.lock();
        let wake = ObjectRef::from_obj(job);
        let fresh = Followed {
            address: address.clone(),
            wake,
            last: None,
            silent: 0,
        };
        let followed = jobs.entry(key.clone()).or_insert(fresh);
        followed.address = address;
        followed.silent = 0;
    }

    /// Asks the job no more.
    pub fn forget(&self, job: &Job) {
        self.lock().remove(job);
    }

    /// Asks all jobs, again and again; wakes those that told something new.
    pub async fn pull(context: Arc<Context>, wake: Sender<ObjectRef<TrainingJob>>) {
        let agents = Agents::default();
        let mut ticks = tokio::time::interval(INTERVAL);
        loop {
            ticks.tick().await;
            let jobs: Vec<_> = context.progress.lock().clone().into_iter().collect();
            let asked = iter(jobs).map(|(job, followed)| {
                let agents = &agents;
                async move {
                    let told = agents.ask::<Told>(&followed.address, ports::PROGRESS_PATH);
                    (told.await, job, followed)
                }
            });
            let mut answers = asked.buffer_unordered(AT_ONCE);
            while let Some((told, job, followed)) = answers.next().await {
                let Some(progress) = told else {
                    context.progress.unanswered(&job);
                    continue;
                };
                let sample = ProgressSample {
                    progress,
                    at: jiff::Timestamp::now(),
                };
                let is_new =
                    followed.last.as_ref().map(|last| &last.progress) != Some(&sample.progress);
                if let Some(entry) = context.progress.lock().get_mut(&job) {
                    entry.last = Some(sample);
                    entry.silent = 0;
                }
                if is_new {
                    let _ = wake.send(followed.wake).await;
                }
            }
        }
    }

    /// A job that never answers is not asked for ever: it may be gone. A reconcile brings it back.
    fn unanswered(&self, job: &Job) {
        let mut jobs = self.lock();
        if let Some(followed) = jobs.get_mut(job) {
            followed.silent += 1;
            if followed.silent > MAX_SILENT {
                jobs.remove(job);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Job, Followed>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
