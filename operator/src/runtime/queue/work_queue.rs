//! The job that is reconciled next, when more wait than there are slots. Pure: no clock, no I/O.
//!
//! - *Lanes*: incidents go first, then new jobs, then all other jobs. No lane starves: of each
//!   eight slots one goes to new jobs first, and one to the rest.
//! - *Namespaces*: within a lane, the namespace with the fewest slots goes first; those with
//!   equally many take turns.
//! - *Reserve*: an eighth of the slots is only for incidents, and no namespace ever holds these as
//!   well. A reconcile that waits for a slow API call holds its slot meanwhile.

use std::collections::{HashMap, VecDeque};

use crate::job::JobName;

/// The priority of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    /// The other workers of the job wait for a worker that was lost.
    Incident,
    /// The job has not trained yet.
    New,
    /// Progress of a job that trains, and other work that can wait as long.
    Rest,
}

/// Every fourth slot goes to a new job first, except every eighth.
const NEW_FIRST: u64 = 4;
/// Every eighth slot goes to the lane `Rest` first.
const REST_FIRST: u64 = 8;
/// One slot in eight is reserved for incidents.
const KEPT: usize = 8;

/// The jobs that wait, and those that are being reconciled.
#[derive(Debug)]
pub struct WorkQueue {
    num_slots: usize,
    lines: [Line; 3],
    /// The lane of each job that waits.
    waiting: HashMap<JobName, Lane>,
    running: HashMap<JobName, Running>,
    /// Number of slots that were given so far.
    num_given: u64,
}

#[derive(Debug)]
struct Running {
    lane: Lane,
    /// The lane in which the job waits after this reconcile, if it was woken meanwhile.
    again: Option<Lane>,
}

/// The jobs that wait in one lane.
#[derive(Debug, Default)]
struct Line {
    /// The namespaces in the order of their turns.
    turns: VecDeque<String>,
    jobs: HashMap<String, VecDeque<JobName>>,
}

impl WorkQueue {
    /// A queue with at most this many reconciles at a time.
    #[must_use]
    pub fn new(num_slots: usize) -> Self {
        Self {
            num_slots: num_slots.max(1),
            lines: Default::default(),
            waiting: HashMap::new(),
            running: HashMap::new(),
            num_given: 0,
        }
    }

    /// Adds a job. It keeps its place if it waits in this lane, or in a better one.
    pub fn add(&mut self, job: JobName, lane: Lane) {
        if let Some(running) = self.running.get_mut(&job) {
            running.again = Some(running.again.map_or(lane, |other| other.min(lane)));
            return;
        }
        match self.waiting.get(&job) {
            Some(known) if *known <= lane => return,
            Some(known) => self.lines[*known as usize].remove(&job),
            None => {}
        }
        self.waiting.insert(job.clone(), lane);
        self.lines[lane as usize].push(job);
    }

    /// The next job, if there is a slot for it. It holds the slot until it is [done](Self::done).
    pub fn begin(&mut self) -> Option<JobName> {
        if self.running.len() >= self.num_slots {
            return None;
        }
        let lanes = match self.num_given + 1 {
            turn if turn % REST_FIRST == 0 => [Lane::Rest, Lane::Incident, Lane::New],
            turn if turn % NEW_FIRST == 0 => [Lane::New, Lane::Incident, Lane::Rest],
            _ => [Lane::Incident, Lane::New, Lane::Rest],
        };
        let (lane, job) = lanes
            .into_iter()
            .find_map(|lane| Some((lane, self.take(lane)?)))?;
        self.num_given += 1;
        self.waiting.remove(&job);
        self.running
            .insert(job.clone(), Running { lane, again: None });
        Some(job)
    }

    /// The reconcile of a job has ended.
    pub fn done(&mut self, job: &JobName) {
        let running = self.running.remove(job);
        if let Some(lane) = running.and_then(|running| running.again) {
            self.add(job.clone(), lane);
        }
    }

    fn take(&mut self, lane: Lane) -> Option<JobName> {
        let most = self.num_slots - self.num_slots / KEPT;
        let is_incident = |running: &&Running| running.lane == Lane::Incident;
        let num_others = self.running.len() - self.running.values().filter(is_incident).count();
        if lane != Lane::Incident && num_others >= most {
            return None;
        }
        let mut held = HashMap::<&str, usize>::new();
        for job in self.running.keys() {
            *held.entry(&job.namespace).or_default() += 1;
        }
        let held = |namespace: &String| held.get(namespace.as_str()).copied().unwrap_or(0);
        let waiting = &mut self.lines[lane as usize];
        let namespaces = waiting.turns.iter().map(held).enumerate();
        let open = namespaces.filter(|(_, held)| *held < most);
        let (turn, _) = open.min_by_key(|(_, held)| *held)?;
        waiting.pop(turn)
    }
}

impl Line {
    fn push(&mut self, job: JobName) {
        let jobs = self.jobs.entry(job.namespace.clone()).or_insert_with(|| {
            self.turns.push_back(job.namespace.clone());
            VecDeque::new()
        });
        jobs.push_back(job);
    }

    /// The first job of the namespace at this turn. The namespace goes to the end of the turns.
    fn pop(&mut self, turn: usize) -> Option<JobName> {
        let namespace = self.turns.remove(turn)?;
        let jobs = self.jobs.get_mut(&namespace)?;
        let job = jobs.pop_front();
        if jobs.is_empty() {
            self.jobs.remove(&namespace);
        } else {
            self.turns.push_back(namespace);
        }
        job
    }

    fn remove(&mut self, job: &JobName) {
        let Some(jobs) = self.jobs.get_mut(&job.namespace) else {
            return;
        };
        jobs.retain(|other| other != job);
        if jobs.is_empty() {
            self.jobs.remove(&job.namespace);
            self.turns.retain(|namespace| *namespace != job.namespace);
        }
    }
}

#[cfg(test)]
mod tests;
