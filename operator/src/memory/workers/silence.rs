//! Whether an agent is silent: it does not answer, while those of other members do, and the others
//! wait for its worker. Its container is frozen, for example. A generation with its worker would
//! break again and again.
//!
//! The operator's own way to an agent may be cut while the worker is sound. So most agents of the
//! job must answer, and a generation must wait for the worker: one that received its membership
//! document is Ready.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use roundhouse_planner::generation::beside::newest_formed;
use roundhouse_planner::generation::members::is_of;
use roundhouse_planner::{Observed, Pod};

use super::is_running_member;

/// How long an agent has to be without an answer until it counts as silent.
pub(super) const SILENT: Duration = Duration::from_secs(10);
/// How many polls in a row an agent has to miss, at least, until it counts as silent.
pub(super) const MISSES: u32 = 8;
/// How many polls in a row a silent agent answers until it does not count as silent any more.
const ANSWERS: u32 = 3;
/// Maximum age of the last answer of an agent that counts as answering.
const ANSWERED_LATELY: Duration = Duration::from_secs(5);

/// How one agent answers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Silence {
    answered_at: Option<Instant>,
    num_answers: u32,
    unanswered_since: Option<Instant>,
    num_misses: u32,
    declared_at: Option<Timestamp>,
}

impl Silence {
    /// Since when the agent counts as silent.
    pub(super) const fn declared_at(&self) -> Option<Timestamp> {
        self.declared_at
    }

    /// The agent answered. Returns whether it stops counting as silent.
    pub(super) fn answered(&mut self) -> bool {
        self.answered_at = Some(Instant::now());
        self.num_answers += 1;
        (self.unanswered_since, self.num_misses) = (None, 0);
        self.num_answers >= ANSWERS && self.declared_at.take().is_some()
    }

    /// The agent did not answer.
    pub(super) fn missed(&mut self) {
        self.unanswered_since.get_or_insert_with(Instant::now);
        self.num_misses += 1;
        self.num_answers = 0;
    }

    /// Whether the agent has not answered for long enough, and does not count as silent yet.
    pub(super) fn is_due(&self) -> bool {
        let is_long = |since: Instant| since.elapsed() >= SILENT;
        self.declared_at.is_none()
            && self.num_misses >= MISSES
            && self.unanswered_since.is_some_and(is_long)
    }

    /// The agent counts as silent from now on.
    pub(super) fn declare(&mut self) {
        self.declared_at = Some(Timestamp::now());
    }

    fn answers(&self) -> bool {
        let is_late = |at: Instant| at.elapsed() <= ANSWERED_LATELY;
        self.num_misses == 0 && self.answered_at.is_some_and(is_late)
    }

    /// Moves everything that happened this far into the past.
    #[cfg(test)]
    pub(super) fn pass(&mut self, span: Duration) {
        if let Some(since) = &mut self.unanswered_since {
            *since = since.checked_sub(span).unwrap();
        }
    }
}

/// Whether at least as many agents answer as do not.
pub(super) fn do_most_answer<'a>(all: impl Iterator<Item = &'a Silence>) -> bool {
    let (mut answer, mut miss) = (0, 0);
    for silence in all {
        if silence.answers() {
            answer += 1;
        } else if silence.num_misses > 0 {
            miss += 1;
        }
    }
    answer > 0 && answer >= miss
}

/// The newest generation of a job, as far as it matters to a worker that is not Ready.
pub(super) struct Newest {
    /// The number of the generation; `None`: there is none yet.
    generation: Option<u64>,
    /// Whether it has not formed, and other members are Ready and wait for it.
    others_wait: bool,
}

impl Newest {
    pub(super) fn of(observed: &Observed) -> Self {
        let Some(newest) = &observed.status.membership else {
            return Self {
                generation: None,
                others_wait: false,
            };
        };
        let formed = newest_formed(observed, newest.generation);
        let mut pods = observed.pods.iter();
        let waits = |pod: &Pod| pod.ready && is_running_member_of(pod, newest.generation);
        Self {
            generation: Some(newest.generation),
            others_wait: formed < newest.generation && pods.any(waits),
        }
    }

    /// Whether the other workers would train without this one, which is not Ready: it is no member,
    /// or they wait for it.
    pub(super) fn does_without(&self, pod: &Pod) -> bool {
        let does = |generation| self.others_wait || !is_running_member_of(pod, generation);
        self.generation.is_some_and(does)
    }
}

fn is_running_member_of(pod: &Pod, generation: u64) -> bool {
    is_running_member(pod) && is_of(pod, generation)
}
