//! Reports of the agents of one job's workers: processes that died although their container is
//! alive. The operator polls the agents of members that are not Ready, beside the reconciles.
//! Without an answer the planner only knows that a generation broke.
//!
//! An agent that does not answer for long, while those of other members do, is [silent](silence).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use roundhouse_contract::{Incarnation, ProcessRestarts};
use roundhouse_planner::worker_state::is_member_of_any;
use roundhouse_planner::{Observed, Pod, PodPhase, Processes, ValidatedJob};

use crate::job::{JobKey, JobName};
use crate::memory::JobMemories;

mod silence;

use silence::{Newest, Silence};

/// Most members that are Ready and are polled beside those that are not.
const MAX_READY: usize = 8;
/// How long a worker with one process is not Ready until its agent is polled. Such an agent has no
/// restarts to report, so a poll only shows that it answers, and a generation usually forms sooner.
const ONE_PROCESS: Duration = Duration::from_secs(5);

/// The workers of one job whose agents are polled.
#[derive(Debug, Default)]
pub struct Workers(BTreeMap<Incarnation, Worker>);

#[derive(Clone, Debug, PartialEq)]
struct Worker {
    address: String,
    /// What agents require for restarts: see [`nonce`].
    nonce: String,
    restarts: Option<ProcessRestarts>,
    /// Whether it has more than one process. The agent restarts each of them by itself.
    has_several: bool,
    ready: bool,
    /// Since when it is Ready, or is not, by the operator's clock.
    since: Instant,
    /// Whether the other workers train, or would train if the next generation left this one out.
    is_dispensable: bool,
    silence: Silence,
}

/// A poll of one agent that is due.
pub(crate) struct Poll {
    pub(crate) job: JobKey,
    pub(crate) incarnation: Incarnation,
    pub(crate) address: String,
    pub(crate) nonce: String,
}

impl Workers {
    /// What the agent of a worker has reported since the worker is not Ready.
    #[must_use]
    pub fn processes(&self, pod: &Pod) -> Option<Processes> {
        let worker = self.0.get(&pod.incarnation())?;
        let restarts = worker.restarts.clone().filter(|_| !pod.ready)?;
        Some(Processes::of(restarts, pod.container.restarts))
    }

    /// Since when the agent of a worker that is not Ready counts as silent, if it does.
    #[must_use]
    pub fn silent_since(&self, pod: &Pod) -> Option<Timestamp> {
        let worker = self.0.get(&pod.incarnation())?;
        worker.silence.declared_at().filter(|_| is_polled(pod))
    }

    /// Updates the workers whose agents are polled: the members that are not Ready, and a few that
    /// are Ready, which show whether the operator reaches agents at all. Returns whether a worker
    /// of several processes has just become unready: one process may have died, so its agent should
    /// be polled before the next tick.
    pub fn follow(&mut self, valid: &ValidatedJob, observed: &Observed) -> bool {
        let pods = observed.pods.iter();
        let pods = pods.filter(|pod| !pod.unreachable || pod.agent_silent);
        let mut polled: Vec<&Pod> = pods.clone().filter(|pod| is_polled(pod)).collect();
        if !polled.is_empty() {
            let ready = pods.filter(|pod| pod.ready && is_running_member(pod));
            polled.extend(ready.take(MAX_READY));
        }
        let newest = Newest::of(observed);
        let mut before = std::mem::take(&mut self.0);
        let mut is_urgent = false;
        let workers = polled.into_iter().filter_map(|pod| {
            let known = before.remove(&pod.incarnation());
            let mut restarts = known.as_ref().and_then(|known| known.restarts.clone());
            let same = known.filter(|known| known.ready == pod.ready);
            if same.is_none() {
                forget_ready(&mut restarts);
            }
            let worker = Worker {
                address: pod.ip.clone()?,
                nonce: nonce(pod)?.to_owned(),
                restarts,
                has_several: valid.procs_per_replica() > 1,
                ready: pod.ready,
                since: same.as_ref().map_or_else(Instant::now, |same| same.since),
                is_dispensable: newest.does_without(pod),
                silence: same
                    .as_ref()
                    .map(|same| same.silence.clone())
                    .unwrap_or_default(),
            };
            is_urgent |= same.is_none() && !worker.ready && worker.has_several;
            Some((pod.incarnation(), worker))
        });
        self.0 = workers.collect();
        is_urgent
    }

    fn due(&self) -> impl Iterator<Item = (&Incarnation, &Worker)> {
        let is_due = |worker: &Worker| worker.has_several || worker.since.elapsed() >= ONE_PROCESS;
        self.0.iter().filter(move |(_, worker)| is_due(worker))
    }

    /// An agent answered; `restarts` is `None` if its answer is not a report of restarts. Returns
    /// whether the planner would see a change.
    fn answered(&mut self, incarnation: &Incarnation, restarts: Option<ProcessRestarts>) -> bool {
        let Some(worker) = self.0.get_mut(incarnation) else {
            return false;
        };
        let mut is_news = worker.silence.answered();
        if worker.has_several && restarts.is_some() {
            is_news |= worker.restarts != restarts;
            worker.restarts = restarts;
        }
        is_news
    }

    /// An agent has not answered. Returns whether the planner would see a change: the agent counts
    /// as silent from now on, or its last answer was that its processes are ready.
    fn unanswered(&mut self, incarnation: &Incarnation) -> bool {
        let Some(worker) = self.0.get_mut(incarnation) else {
            return false;
        };
        worker.silence.missed();
        let was_ready = forget_ready(&mut worker.restarts);
        if worker.ready || !worker.is_dispensable || !worker.silence.is_due() {
            return was_ready;
        }
        if !silence::do_most_answer(self.0.values().map(|worker| &worker.silence)) {
            return was_ready;
        }
        let worker = self.0.get_mut(incarnation);
        worker.is_some_and(|worker| {
            worker.silence.declare();
            true
        })
    }
}

/// The polls of all jobs' workers that are not Ready.
impl JobMemories {
    /// Updates the members that are polled, and requests a poll at once if one has just become
    /// unready.
    pub(crate) fn follow_workers(&self, job: &JobKey, valid: &ValidatedJob, observed: &Observed) {
        if self.with(job, |memory| memory.workers.follow(valid, observed)) {
            self.poll_requests.notify_one();
        }
    }

    /// Waits until a worker needs a poll before the next tick.
    pub(crate) async fn poll_requested(&self) {
        self.poll_requests.notified().await;
    }

    /// The agents to poll now.
    pub(crate) fn worker_polls(&self) -> Vec<Poll> {
        let state = self.lock();
        let polls = state.jobs.all().iter().flat_map(|(job, memory)| {
            let due = memory.workers.due();
            due.map(|(incarnation, worker)| Poll {
                job: job.clone(),
                incarnation: incarnation.clone(),
                address: worker.address.clone(),
                nonce: worker.nonce.clone(),
            })
        });
        polls.collect()
    }

    /// An agent answered; `restarts` is `None` if its answer is not a report of restarts. Returns
    /// the job to wake if the planner would see a change.
    pub(crate) fn worker_answered(
        &self,
        job: &JobKey,
        incarnation: &Incarnation,
        restarts: Option<ProcessRestarts>,
    ) -> Option<JobName> {
        self.with(job, |memory| {
            let is_news = memory.workers.answered(incarnation, restarts);
            is_news.then(|| memory.name.clone())
        })
    }

    /// An agent has not answered. Returns the job to wake if the agent counts as silent from now
    /// on.
    pub(crate) fn worker_unanswered(
        &self,
        job: &JobKey,
        incarnation: &Incarnation,
    ) -> Option<JobName> {
        self.with(job, |memory| {
            let is_news = memory.workers.unanswered(incarnation);
            is_news.then(|| memory.name.clone())
        })
    }
}

/// Forgets a report that all processes are ready, which may not be so any more. Returns whether
/// there was one.
fn forget_ready(restarts: &mut Option<ProcessRestarts>) -> bool {
    restarts.take_if(|restarts| restarts.ready).is_some()
}

/// Whether a worker may hold state although it is not Ready.
fn is_polled(pod: &Pod) -> bool {
    !pod.ready && (is_running_member(pod) || has_place(pod) && runs(pod))
}

/// Whether the container of the pod has a place in a replica of several pods, and has been Ready
/// with it. If its processes have ended since, even before the first generation, only its agent
/// knows that. Pods that still prepare are not polled: a job may start thousands.
fn has_place(pod: &Pod) -> bool {
    let place = pod.replica.as_ref();
    place.is_some_and(|place| {
        let issued_at = place.issued_at.parse::<Timestamp>().ok();
        pod.is_incarnation(&place.incarnation) && pod.ready_at >= issued_at
    })
}

/// What the agent requires from a client that may read the pod: the nonce of its generation, or
/// the life of its replica.
fn nonce(pod: &Pod) -> Option<&str> {
    let document = pod.membership.as_ref().map(|document| &*document.nonce);
    let life = pod.replica.as_ref().map(|place| &*place.life);
    document.or(life)
}

fn is_running_member(pod: &Pod) -> bool {
    is_member_of_any(pod) && runs(pod)
}

fn runs(pod: &Pod) -> bool {
    pod.ours && !pod.deleting && pod.phase == PodPhase::Running
}

#[cfg(test)]
mod tests {
    use roundhouse_contract::ReplicaPlace;
    use roundhouse_planner::testing::{World, world};

    use super::*;

    fn training(procs_per_worker: u32) -> World {
        let mut world = world(2);
        world.job.procs_per_worker = procs_per_worker;
        world.training()
    }

    fn restarts() -> ProcessRestarts {
        ProcessRestarts {
            ended_life: String::new(),
            has_lives: false,
            total: 1,
            preparing: vec![1],
            without_state: false,
            ready: false,
            last: None,
        }
    }

    fn follow(workers: &mut Workers, world: &World) -> Vec<String> {
        workers.follow(&world.job, &world.observed);
        let polled = workers.due().map(|(_, worker)| {
            assert_eq!(worker.nonce, "0".repeat(32), "that of its document");
            worker.address.clone()
        });
        polled.collect()
    }

    #[test]
    fn agents_are_polled_only_while_a_member_is_unready() {
        let (mut workers, mut world) = (Workers::default(), training(2));
        assert!(follow(&mut workers, &world).is_empty());
        world.is_ready(1, false);
        assert_eq!(follow(&mut workers, &world).len(), 2);
        world.is_ready(1, true);
        assert!(follow(&mut workers, &world).is_empty());
    }

    #[test]
    fn pods_with_a_place_are_polled_once_they_were_ready() {
        let mut world = training(1);
        world.job.pods_per_replica = 2;
        let now = world.now;
        let pod = &mut world.observed.pods[1];
        pod.membership = None;
        pod.replica = Some(ReplicaPlace {
            replica: 0,
            pod: 1,
            addresses: vec!["10.0.0.0".to_owned(), "10.0.0.1".to_owned()],
            holders: Vec::new(),
            number: 1,
            life: "a1".to_owned(),
            incarnation: pod.incarnation(),
            issued_at: now.to_string(),
            repeats: 0,
        });
        let polled = |ready_at: i64| {
            let (mut workers, mut world) = (Workers::default(), world.clone());
            let pod = &mut world.observed.pods[1];
            (pod.ready, pod.ready_at) = (false, Timestamp::from_second(ready_at).ok());
            workers.follow(&world.job, &world.observed);
            let worker = workers.0.get(&world.observed.pods[1].incarnation());
            worker.map(|worker| worker.nonce.clone())
        };
        let issued_at = now.as_second();
        assert_eq!(polled(issued_at - 10), None, "it still prepares");
        assert_eq!(polled(issued_at + 10).as_deref(), Some("a1"));
    }

    #[test]
    fn unready_worker_of_several_processes_requests_one_poll() {
        for (procs, is_urgent) in [(1, false), (2, true)] {
            let (mut workers, mut world) = (Workers::default(), training(procs));
            assert!(!workers.follow(&world.job, &world.observed));
            world.is_ready(1, false);
            assert_eq!(workers.follow(&world.job, &world.observed), is_urgent);
            assert!(!workers.follow(&world.job, &world.observed), "once");
        }
    }

    /// Moves everything that happened this far into the past.
    fn pass(workers: &mut Workers, span: Duration) {
        for worker in workers.0.values_mut() {
            worker.since = worker.since.checked_sub(span).unwrap();
            worker.silence.pass(span);
        }
    }

    #[test]
    fn ready_processes_are_forgotten_when_a_poll_is_missed() {
        let (mut workers, mut world) = (Workers::default(), training(2));
        let ready = |workers: &Workers, world: &World| {
            let processes = workers.processes(&world.observed.pods[1]);
            processes.is_some_and(|processes| processes.are_ready)
        };
        let answer = Some(ProcessRestarts {
            ready: true,
            ..ProcessRestarts::default()
        });
        world.is_ready(0, false);
        follow(&mut workers, &world);
        let incarnation = world.observed.pods[1].incarnation();
        workers.answered(&incarnation, answer.clone());
        world.is_ready(1, false);
        follow(&mut workers, &world);
        assert!(!ready(&workers, &world), "it was polled while it was Ready");
        assert!(workers.answered(&incarnation, answer));
        assert!(ready(&workers, &world));
        assert!(workers.unanswered(&incarnation), "the job wakes");
        assert!(!ready(&workers, &world));
        assert!(!workers.unanswered(&incarnation));
    }

    #[test]
    fn single_process_worker_is_polled_later_without_restarts() {
        let (mut workers, mut world) = (Workers::default(), training(1));
        world.is_ready(1, false);
        assert!(follow(&mut workers, &world).is_empty());
        pass(&mut workers, ONE_PROCESS);
        assert_eq!(follow(&mut workers, &world).len(), 2);
        let incarnation = world.observed.pods[1].incarnation();
        assert!(!workers.answered(&incarnation, Some(restarts())));
        assert_eq!(workers.processes(&world.observed.pods[1]), None);
    }

    /// Leaves polls without an answer until an agent can count as silent.
    fn is_not_answered(workers: &mut Workers, incarnation: &Incarnation) -> bool {
        let before = (0..silence::MISSES).any(|_| workers.unanswered(incarnation));
        pass(workers, silence::SILENT);
        workers.unanswered(incarnation) || before
    }

    /// Worker 1 is not Ready, and worker 0 waits for it in a generation that does not form.
    fn waits() -> (Workers, World) {
        let (mut workers, mut world) = (Workers::default(), training(1));
        world.is_ready(1, false);
        let membership = world.observed.status.membership.as_mut().unwrap();
        membership.formed = 0;
        world.observed.formed = None;
        follow(&mut workers, &world);
        (workers, world)
    }

    #[test]
    fn agent_is_silent_only_while_agents_of_other_members_answer() {
        let (mut workers, mut world) = waits();
        let [one, other] = [0, 1].map(|at| world.observed.pods[at].incarnation());
        assert!(!is_not_answered(&mut workers, &other), "no agent answers");
        workers.answered(&one, None);
        assert!(is_not_answered(&mut workers, &other), "{workers:?}");
        assert!(!is_not_answered(&mut workers, &other), "no news");
        let since = |workers: &Workers, world: &World, at: usize| {
            workers.silent_since(&world.observed.pods[at])
        };
        assert_eq!(since(&workers, &world, 0), None);
        assert!(since(&workers, &world, 1).is_some());
        world.agent_is_silent(1, true);
        assert_eq!(follow(&mut workers, &world).len(), 2, "it is still polled");
        for _ in 0..2 {
            assert!(!workers.answered(&other, None), "once is luck");
        }
        assert!(workers.answered(&other, None));
        assert_eq!(since(&workers, &world, 1), None);
    }

    #[test]
    fn unreachable_agent_is_not_silent_while_no_worker_waits() {
        let (mut workers, mut world) = (Workers::default(), training(1));
        world.is_ready(1, false);
        world.observed.formed = Some(1);
        follow(&mut workers, &world);
        let [one, other] = [0, 1].map(|at| world.observed.pods[at].incarnation());
        workers.answered(&one, None);
        assert!(
            !is_not_answered(&mut workers, &other),
            "its generation has formed"
        );
    }

    #[test]
    fn misses_of_a_ready_worker_do_not_count_once_it_is_unready() {
        let (mut workers, mut world) = waits();
        let [one, other] = [0, 1].map(|at| world.observed.pods[at].incarnation());
        assert!(!is_not_answered(&mut workers, &one));
        world.is_ready(0, false);
        world.is_ready(1, true);
        follow(&mut workers, &world);
        workers.answered(&other, None);
        assert!(!workers.unanswered(&one));
    }

    #[test]
    fn restarts_wake_the_job_once_and_expire_with_the_container() {
        let (mut workers, mut world) = (Workers::default(), training(2));
        world.is_ready(1, false);
        follow(&mut workers, &world);
        let incarnation = world.observed.pods[1].incarnation();
        assert!(workers.answered(&incarnation, Some(restarts())));
        assert!(!workers.answered(&incarnation, Some(restarts())));
        follow(&mut workers, &world);
        let of = |world: &World| workers.processes(&world.observed.pods[1]);
        assert!(of(&world).unwrap().are_preparing);
        let mut ready = world.clone();
        ready.is_ready(1, true);
        assert_eq!(of(&ready), None);
        world.restarts(1);
        assert_eq!(of(&world), None);
    }
}
