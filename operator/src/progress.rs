//! How far jobs have come: asked of rank 0's agent over HTTP. Best effort, beside the reconciles.
//!
//! A job that trains is asked for as long as it exists. One that does not answer is asked less often: the network between
//! the operator and the workers may be closed, or may be so for a while.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::iter;
use kube::ResourceExt;
use kube::runtime::reflector::{ObjectRef, Store};
use roundhouse_api::TrainingJob;
use roundhouse_contract::{Progress as Told, ToldProgress, ports};
use roundhouse_planner::ProgressSample;
use tokio::sync::mpsc::Sender;

use crate::ask::Agents;
use crate::cache::Job;
use crate::context::Context;
use crate::unreadable::Guarded;

const INTERVAL: Duration = Duration::from_secs(3);
const AT_ONCE: usize = 32;
/// Questions without an answer after which a job is asked in one of [`SELDOM`] intervals: after a minute, once a minute.
const MAX_SILENT: u32 = 20;
const SELDOM: u32 = 20;

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
    /// Intervals in a row without an answer.
    silent: u32,
}

impl Followed {
    /// Whether it is asked now.
    const fn is_due(&self) -> bool {
        self.silent < MAX_SILENT || self.silent.is_multiple_of(SELDOM)
    }
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
        if let Some(address) = first_rank(key, context) {
            self.ask_at(key, ObjectRef::from_obj(job), address);
        }
    }

    fn ask_at(&self, key: &Job, wake: ObjectRef<TrainingJob>, address: String) {
        let mut jobs = self.lock();
        let known = jobs.get(key).filter(|known| known.address == address);
        let silent = known.map_or(0, |known| known.silent);
        let last = jobs.remove(key).and_then(|known| known.last);
        let followed = Followed {
            address,
            wake,
            last,
            silent,
        };
        jobs.insert(key.clone(), followed);
    }

    /// Asks the job no more.
    pub fn forget(&self, job: &Job) {
        self.lock().remove(job);
    }

    /// Asks all jobs, again and again; wakes those that told something new.
    pub async fn pull(
        context: Arc<Context>,
        wake: Sender<ObjectRef<TrainingJob>>,
        jobs: Store<Guarded>,
    ) {
        let agents = Agents::default();
        let mut ticks = tokio::time::interval(INTERVAL);
        loop {
            ticks.tick().await;
            let exists = |(_, uid): &Job, job: ObjectRef<TrainingJob>| {
                let found = jobs.get(&job.into_kind_unchecked(()));
                found.is_some_and(|found| found.uid().as_ref() == Some(uid))
            };
            let asked = iter(context.progress.questions(exists)).map(|(job, address)| {
                let agents = &agents;
                async move {
                    let told: Option<ToldProgress> =
                        agents.ask(&address, ports::PROGRESS_PATH).await;
                    (told.and_then(|told| told.of(&job.1)), job)
                }
            });
            let mut answers = asked.buffer_unordered(AT_ONCE);
            while let Some((told, job)) = answers.next().await {
                let news = told.and_then(|told| context.progress.hear(&job, told));
                if let Some(job) = news {
                    let _ = wake.send(job).await;
                }
            }
        }
    }

    /// Whom to ask now. Jobs that do not exist any more are forgotten.
    fn questions(
        &self,
        exists: impl Fn(&Job, ObjectRef<TrainingJob>) -> bool,
    ) -> Vec<(Job, String)> {
        let mut jobs = self.lock();
        jobs.retain(|key, followed| exists(key, followed.wake.clone()));
        let mut asked = Vec::new();
        for (job, followed) in jobs.iter_mut() {
            if followed.is_due() {
                asked.push((job.clone(), followed.address.clone()));
            }
            // Until there is an answer.
            followed.silent = followed.silent.saturating_add(1);
        }
        asked
    }

    /// Takes in an answer; returns the job to wake if it is news.
    fn hear(&self, job: &Job, progress: Told) -> Option<ObjectRef<TrainingJob>> {
        let at = jiff::Timestamp::now();
        let mut jobs = self.lock();
        let followed = jobs.get_mut(job)?;
        followed.silent = 0;
        let is_news = followed.last.as_ref().map(|last| &last.progress) != Some(&progress);
        followed.last = Some(ProgressSample { progress, at });
        is_news.then(|| followed.wake.clone())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Job, Followed>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Address of the worker with rank 0 of the newest generation.
fn first_rank(key: &Job, context: &Context) -> Option<String> {
    let pods = context.pods.of(key);
    let places = pods.values().filter(|entry| !entry.value.deleting);
    let places = places.filter_map(|entry| Some((entry.value.membership.as_ref()?, entry)));
    let first = places
        .filter(|(place, _)| place.node_rank == 0)
        .max_by_key(|(place, _)| place.generation);
    first.and_then(|(_, entry)| entry.value.ip.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Job {
        ("ml".to_owned(), "uid".to_owned())
    }

    fn followed(address: &str) -> Progress {
        let progress = Progress::default();
        progress.ask_at(
            &key(),
            ObjectRef::new("digits").within("ml"),
            address.to_owned(),
        );
        progress
    }

    /// How often the job is asked in so many intervals.
    fn asked(progress: &Progress, intervals: u32) -> usize {
        let exists = |_: &Job, _: ObjectRef<TrainingJob>| true;
        (0..intervals)
            .map(|_| progress.questions(exists).len())
            .sum()
    }

    #[test]
    fn a_job_that_never_answers_is_asked_less_often_and_for_ever() {
        let progress = followed("10.0.0.1");
        assert_eq!(asked(&progress, MAX_SILENT), MAX_SILENT as usize);
        assert_eq!(asked(&progress, 1_000 * SELDOM), 1_000);
        // A reconcile of the same job changes nothing.
        progress.ask_at(
            &key(),
            ObjectRef::new("digits").within("ml"),
            "10.0.0.1".to_owned(),
        );
        assert_eq!(asked(&progress, SELDOM), 1);
    }

    #[test]
    fn an_answer_and_another_address_are_asked_often_again() {
        let progress = followed("10.0.0.1");
        asked(&progress, 100);
        progress.hear(&key(), Told::default());
        assert_eq!(asked(&progress, 5), 5);
        asked(&progress, 100);
        progress.ask_at(
            &key(),
            ObjectRef::new("digits").within("ml"),
            "10.0.0.2".to_owned(),
        );
        assert_eq!(asked(&progress, 5), 5);
        assert!(progress.of(&key()).is_some(), "what was told is kept");
    }

    #[test]
    fn a_job_that_is_gone_is_forgotten() {
        let progress = followed("10.0.0.1");
        assert!(progress.questions(|_, _| false).is_empty());
        assert!(progress.hear(&key(), Told::default()).is_none());
        assert!(progress.lock().is_empty());
    }

    #[test]
    fn the_same_answer_again_is_no_news() {
        let progress = followed("10.0.0.1");
        assert!(progress.hear(&key(), Told::default()).is_some());
        assert!(progress.hear(&key(), Told::default()).is_none());
    }
}
