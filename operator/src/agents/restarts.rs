//! What agents report of processes that died although their container is alive. The operator polls the agents of members that
//! are not Ready, beside the reconciles. Best effort: without an answer the planner only knows that a generation broke.
//!
//! An agent that does not answer for long, while those of other members do, is [silent](silence).

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use roundhouse_api::TrainingJob;
use roundhouse_contract::{Incarnation, ProcessRestarts};
use roundhouse_planner::generation::worker::is_member_of_any;
use roundhouse_planner::{Observed, Pod, PodPhase, Processes, ValidatedJob};

use crate::job::{JobKey, JobName};

pub(crate) mod pull;
mod silence;

use silence::{Newest, Silence};

/// About ten minutes, after which nobody is asked for a job that no reconcile has brought back: it may be gone.
const MAX_QUESTIONS: u32 = 1_200;
/// Most members that are Ready and are polled beside those that are not.
const MAX_READY: usize = 8;
/// How long a worker with one process is not Ready until its agent is polled. It has nothing to report but that it answers, and
/// a generation usually forms sooner.
const ONE_PROCESS: Duration = Duration::from_secs(5);

/// Workers that are asked, and what each last told.
#[derive(Debug, Default)]
pub struct Restarts {
    jobs: Mutex<HashMap<JobKey, Followed>>,
}

#[derive(Clone, Debug)]
struct Followed {
    wake: JobName,
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
    /// Whether it has more than one process, which die and are restarted by themselves.
    has_several: bool,
    ready: bool,
    /// Since when it is Ready, or not, as the operator saw it.
    since: Instant,
    /// Whether others train, or would, if the next generation leaves it out.
    is_dispensable: bool,
    silence: Silence,
}

/// A question to one agent.
struct Question {
    job: JobKey,
    incarnation: Incarnation,
    address: String,
    nonce: String,
}

impl Restarts {
    /// What a worker told since it is not Ready.
    #[must_use]
    pub fn of(&self, job: &JobKey, pod: &Pod) -> Option<Processes> {
        let jobs = self.lock();
        let worker = jobs.get(job)?.workers.get(&pod.incarnation())?;
        let told = worker.told.clone().filter(|_| !pod.ready)?;
        Some(Processes::of(told, pod.container.restarts))
    }

    /// Since when the agent of a worker that is not Ready counts as silent, if it does.
    #[must_use]
    pub fn silent_since(&self, job: &JobKey, pod: &Pod) -> Option<Timestamp> {
        let jobs = self.lock();
        let worker = jobs.get(job)?.workers.get(&pod.incarnation())?;
        worker.silence.declared_at().filter(|_| is_polled(pod))
    }

    /// Polls the members of the job that are not Ready from now on, and beside them a few that are Ready, which show whether the
    /// operator reaches agents at all.
    pub fn follow(
        &self,
        key: &JobKey,
        job: &TrainingJob,
        valid: &ValidatedJob,
        observed: &Observed,
    ) {
        let pods = observed.pods.iter();
        let pods = pods.filter(|pod| !pod.unreachable || pod.agent_silent);
        let mut polled: Vec<&Pod> = pods.clone().filter(|pod| is_polled(pod)).collect();
        if !polled.is_empty() {
            let ready = pods.filter(|pod| pod.ready && is_running_member(pod));
            polled.extend(ready.take(MAX_READY));
        }
        let newest = Newest::of(observed);
        let mut jobs = self.lock();
        let before = jobs.remove(key).map(|followed| followed.workers);
        let mut before = before.unwrap_or_default();
        let workers: BTreeMap<Incarnation, Worker> = polled
            .into_iter()
            .filter_map(|pod| {
                let known = before.remove(&pod.incarnation());
                let told = known.as_ref().and_then(|known| known.told.clone());
                let same = known.filter(|known| known.ready == pod.ready);
                let worker = Worker {
                    address: pod.ip.clone()?,
                    nonce: pod.membership.as_ref()?.nonce.clone(),
                    told,
                    has_several: valid.procs_per_worker > 1,
                    ready: pod.ready,
                    since: same.as_ref().map_or_else(Instant::now, |same| same.since),
                    is_dispensable: newest.does_without(pod),
                    silence: same.map(|same| same.silence).unwrap_or_default(),
                };
                Some((pod.incarnation(), worker))
            })
            .collect();
        if !workers.is_empty() {
            let followed = Followed {
                wake: JobName::of(&job.metadata),
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
            let due = workers
                .filter(|(_, worker)| worker.has_several || worker.since.elapsed() >= ONE_PROCESS);
            due.map(|(who, worker)| Question {
                job: job.clone(),
                incarnation: who.clone(),
                address: worker.address.clone(),
                nonce: worker.nonce.clone(),
            })
        });
        workers.collect()
    }

    /// An agent has answered, if possible with its restarts. Returns the job to wake if that changes anything.
    fn answered(
        &self,
        job: &JobKey,
        incarnation: &Incarnation,
        told: Option<ProcessRestarts>,
    ) -> Option<JobName> {
        let mut jobs = self.lock();
        let followed = jobs.get_mut(job)?;
        let worker = followed.workers.get_mut(incarnation)?;
        let mut is_news = worker.silence.answered();
        if worker.has_several && told.is_some() {
            is_news |= worker.told != told;
            worker.told = told;
        }
        is_news.then(|| followed.wake.clone())
    }

    /// An agent has not answered. Returns the job to wake if the agent counts as silent from now on.
    fn unanswered(&self, job: &JobKey, incarnation: &Incarnation) -> Option<JobName> {
        let mut jobs = self.lock();
        let followed = jobs.get_mut(job)?;
        let worker = followed.workers.get_mut(incarnation)?;
        worker.silence.missed();
        if worker.ready || !worker.is_dispensable || !worker.silence.is_due() {
            return None;
        }
        let all = followed.workers.values().map(|worker| &worker.silence);
        if !silence::do_most_answer(all) {
            return None;
        }
        followed.workers.get_mut(incarnation)?.silence.declare();
        Some(followed.wake.clone())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<JobKey, Followed>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a worker may hold state although it is not Ready.
fn is_polled(pod: &Pod) -> bool {
    !pod.ready && is_running_member(pod)
}

fn is_running_member(pod: &Pod) -> bool {
    is_member_of_any(pod) && pod.ours && !pod.deleting && pod.phase == PodPhase::Running
}

#[cfg(test)]
mod tests {
    use roundhouse_planner::testing::{World, raw_job, world};

    use super::*;

    fn key() -> JobKey {
        JobKey::new("ml", "job-uid")
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
        restarts.follow(&key(), &raw_job(2), &world.job, &world.observed);
        let questions = restarts.questions().into_iter();
        let asked = questions.map(|question| {
            assert_eq!(question.nonce, "0".repeat(32), "that of its document");
            question.address
        });
        asked.collect()
    }

    #[test]
    fn agents_are_polled_only_while_a_member_is_not_ready() {
        let (restarts, mut world) = (Restarts::default(), training(2));
        assert!(follow(&restarts, &world).is_empty());
        world.is_ready(1, false);
        assert_eq!(follow(&restarts, &world).len(), 2);
        world.is_ready(1, true);
        assert!(follow(&restarts, &world).is_empty());
    }

    /// As if all that happened had happened so long ago.
    fn pass(restarts: &Restarts, span: Duration) {
        let mut jobs = restarts.lock();
        for worker in jobs.values_mut().flat_map(|it| it.workers.values_mut()) {
            worker.since = worker.since.checked_sub(span).unwrap();
            worker.silence.pass(span);
        }
    }

    #[test]
    fn a_worker_with_one_process_is_polled_only_after_a_while_and_reports_no_restarts() {
        let (restarts, mut world) = (Restarts::default(), training(1));
        world.is_ready(1, false);
        assert!(follow(&restarts, &world).is_empty());
        pass(&restarts, ONE_PROCESS);
        assert_eq!(follow(&restarts, &world).len(), 2);
        let incarnation = world.observed.pods[1].incarnation();
        assert_eq!(restarts.answered(&key(), &incarnation, Some(told())), None);
        assert_eq!(restarts.of(&key(), &world.observed.pods[1]), None);
    }

    /// Polls that are not answered, for long enough.
    fn is_not_answered(restarts: &Restarts, incarnation: &Incarnation) -> bool {
        let miss = || restarts.unanswered(&key(), incarnation).is_some();
        let before = (0..silence::MISSES).any(|_| miss());
        pass(restarts, silence::SILENT);
        miss() || before
    }

    /// Worker 1 is not Ready, and worker 0 waits for it in a generation that does not form.
    fn waits() -> (Restarts, World) {
        let (restarts, mut world) = (Restarts::default(), training(1));
        world.is_ready(1, false);
        let membership = world.observed.status.membership.as_mut().unwrap();
        membership.formed = 0;
        world.observed.formed = None;
        follow(&restarts, &world);
        (restarts, world)
    }

    #[test]
    fn an_agent_is_silent_only_while_those_of_other_members_answer() {
        let (restarts, mut world) = waits();
        let [one, other] = [0, 1].map(|at| world.observed.pods[at].incarnation());
        assert!(!is_not_answered(&restarts, &other), "no agent answers");
        restarts.answered(&key(), &one, None);
        assert!(is_not_answered(&restarts, &other), "{restarts:?}");
        assert!(!is_not_answered(&restarts, &other), "no news");
        let since =
            |world: &World, at: usize| restarts.silent_since(&key(), &world.observed.pods[at]);
        assert!(since(&world, 0).is_none() && since(&world, 1).is_some());
        world.agent_is_silent(1, true);
        assert_eq!(follow(&restarts, &world).len(), 2, "it is still polled");
        for _ in 0..2 {
            assert_eq!(
                restarts.answered(&key(), &other, None),
                None,
                "once is luck"
            );
        }
        assert!(restarts.answered(&key(), &other, None).is_some());
        assert_eq!(since(&world, 1), None);
    }

    #[test]
    fn an_agent_that_is_not_reached_is_not_silent_while_nothing_waits_for_it() {
        let (restarts, mut world) = (Restarts::default(), training(1));
        world.is_ready(1, false);
        world.observed.formed = Some(1);
        follow(&restarts, &world);
        let [one, other] = [0, 1].map(|at| world.observed.pods[at].incarnation());
        restarts.answered(&key(), &one, None);
        assert!(
            !is_not_answered(&restarts, &other),
            "its generation has formed"
        );
    }

    #[test]
    fn misses_of_a_ready_worker_do_not_count_when_it_is_not_ready_any_more() {
        let (restarts, mut world) = waits();
        let [one, other] = [0, 1].map(|at| world.observed.pods[at].incarnation());
        assert!(!is_not_answered(&restarts, &one));
        world.is_ready(0, false);
        world.is_ready(1, true);
        follow(&restarts, &world);
        restarts.answered(&key(), &other, None);
        assert_eq!(restarts.unanswered(&key(), &one), None);
    }

    #[test]
    fn news_wake_the_job_once_and_count_only_for_the_container_that_told_them() {
        let (restarts, mut world) = (Restarts::default(), training(2));
        world.is_ready(1, false);
        follow(&restarts, &world);
        let incarnation = world.observed.pods[1].incarnation();
        assert!(
            restarts
                .answered(&key(), &incarnation, Some(told()))
                .is_some()
        );
        assert!(
            restarts
                .answered(&key(), &incarnation, Some(told()))
                .is_none()
        );
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
