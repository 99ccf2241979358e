//! What agents tell of processes that died although their container lives on. Members that are not Ready are
//! asked, beside the reconciles; a job with one process for each worker never is.
//!
//! Best effort: without an answer the planner only knows that a generation broke.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use kube::runtime::reflector::ObjectRef;
use roundhouse_api::TrainingJob;
use roundhouse_contract::{Action, Incarnation, ProcessRestarts};
use roundhouse_planner::{Pod, PodPhase, Processes, ValidatedJob};

use crate::cache::Job;

pub(crate) mod pull;

/// About ten minutes, after which nobody is asked for a job that no reconcile has brought back: it may be gone.
const MAX_QUESTIONS: u32 = 1_200;

/// Workers that are asked, and what each last told.
#[derive(Debug, Default)]
pub struct Restarts {
    jobs: Mutex<HashMap<Job, Followed>>,
}

#[derive(Clone, Debug)]
struct Followed {
    wake: ObjectRef<TrainingJob>,
    workers: BTreeMap<Incarnation, Worker>,
    /// Since the last reconcile.
    num_questions: u32,
}

#[derive(Clone, Debug, PartialEq)]
struct Worker {
    address: String,
    /// Of its membership document; agents require it for restarts.
    nonce: String,
    told: Option<ProcessRestarts>,
}

/// A question to one agent.
struct Question {
    job: Job,
    incarnation: Incarnation,
    address: String,
    nonce: String,
}

impl Restarts {
    /// What a worker told since it is not Ready.
    #[must_use]
    pub fn of(&self, job: &Job, pod: &Pod) -> Option<Processes> {
        let jobs = self.lock();
        let worker = jobs.get(job)?.workers.get(&pod.incarnation())?;
        let told = worker.told.clone().filter(|_| !pod.ready)?;
        Some(Processes::of(told, pod.container.restarts))
    }

    /// Asks the members of the job that are not Ready from now on, and nobody else.
    pub fn follow(&self, key: &Job, job: &TrainingJob, valid: &ValidatedJob, pods: &[Pod]) {
        let asked = pods
            .iter()
            .filter(|pod| valid.procs_per_worker > 1 && is_asked(pod))
            .filter_map(|pod| {
                let nonce = pod.membership.as_ref()?.nonce.clone();
                Some((pod.incarnation(), pod.ip.clone()?, nonce))
            });
        let mut jobs = self.lock();
        let before = jobs.remove(key).map(|followed| followed.workers);
        let mut before = before.unwrap_or_default();
        let workers: BTreeMap<Incarnation, Worker> = asked
            .map(|(incarnation, address, nonce)| {
                let told = before.remove(&incarnation).and_then(|worker| worker.told);
                let worker = Worker {
                    address,
                    nonce,
                    told,
                };
                (incarnation, worker)
            })
            .collect();
        if !workers.is_empty() {
            let followed = Followed {
                wake: ObjectRef::from_obj(job),
                workers,
                num_questions: 0,
            };
            jobs.insert(key.clone(), followed);
        }
    }

    /// Whom to ask now.
    fn questions(&self) -> Vec<Question> {
        let mut jobs = self.lock();
        jobs.retain(|_, followed| {
            followed.num_questions += 1;
            followed.num_questions <= MAX_QUESTIONS
        });
        let workers = jobs.iter().flat_map(|(job, followed)| {
            let workers = followed.workers.iter();
            workers.map(|(who, worker)| Question {
                job: job.clone(),
                incarnation: who.clone(),
                address: worker.address.clone(),
                nonce: worker.nonce.clone(),
            })
        });
        workers.collect()
    }

    /// Takes in an answer; returns the job to wake if it is news.
    fn hear(
        &self,
        job: &Job,
        incarnation: &Incarnation,
        told: ProcessRestarts,
    ) -> Option<ObjectRef<TrainingJob>> {
        let mut jobs = self.lock();
        let followed = jobs.get_mut(job)?;
        let worker = followed.workers.get_mut(incarnation)?;
        let is_news = worker.told.as_ref() != Some(&told);
        worker.told = Some(told);
        is_news.then(|| followed.wake.clone())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Job, Followed>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a worker may hold state although it is not Ready.
fn is_asked(pod: &Pod) -> bool {
    let has_joined = pod.membership.as_ref().is_some_and(|document| {
        document.action == Action::Join && document.incarnation == pod.incarnation()
    });
    has_joined
        && pod.ours
        && !pod.ready
        && !pod.deleting
        && !pod.unreachable
        && pod.phase == PodPhase::Running
}

#[cfg(test)]
mod tests {
    use roundhouse_planner::testing::{World, raw_job, world};

    use super::*;

    fn key() -> Job {
        ("ml".to_owned(), "job-uid".to_owned())
    }

    fn training(procs_per_worker: u32) -> World {
        let mut world = world(2);
        world.job.procs_per_worker = procs_per_worker;
        world.training()
    }

    fn told() -> ProcessRestarts {
        ProcessRestarts {
            total: 1,
            preparing: vec![1],
            last: None,
        }
    }

    fn follow(restarts: &Restarts, world: &World) -> Vec<String> {
        let pods = &world.observed.pods;
        restarts.follow(&key(), &raw_job(2), &world.job, pods);
        let questions = restarts.questions().into_iter();
        let asked = questions.map(|question| {
            assert_eq!(question.nonce, "0".repeat(32), "that of its document");
            question.address
        });
        asked.collect()
    }

    #[test]
    fn members_that_are_not_ready_are_asked_and_others_are_not() {
        let (restarts, mut world) = (Restarts::default(), training(2));
        assert!(follow(&restarts, &world).is_empty());
        world.is_ready(1, false);
        assert_eq!(follow(&restarts, &world), ["10.0.0.1"]);
        world.is_ready(1, true);
        assert!(follow(&restarts, &world).is_empty());
        let mut single = training(1);
        single.is_ready(1, false);
        assert!(follow(&restarts, &single).is_empty());
    }

    #[test]
    fn news_wake_the_job_once_and_count_only_for_the_container_that_told_them() {
        let (restarts, mut world) = (Restarts::default(), training(2));
        world.is_ready(1, false);
        follow(&restarts, &world);
        let incarnation = world.observed.pods[1].incarnation();
        assert!(restarts.hear(&key(), &incarnation, told()).is_some());
        assert!(restarts.hear(&key(), &incarnation, told()).is_none());
        follow(&restarts, &world);
        let of = |world: &World| restarts.of(&key(), &world.observed.pods[1]);
        assert!(of(&world).unwrap().are_preparing);
        let mut ready = world.clone();
        ready.is_ready(1, true);
        assert_eq!(of(&ready), None);
        world.restarts(1);
        assert_eq!(of(&world), None);
    }

    #[test]
    fn a_job_that_no_reconcile_brings_back_is_not_asked_for_ever() {
        let (restarts, mut world) = (Restarts::default(), training(2));
        world.is_ready(1, false);
        follow(&restarts, &world);
        for _ in 0..MAX_QUESTIONS {
            restarts.questions();
        }
        assert!(restarts.lock().is_empty());
    }
}
