//! Dead processes that wait for a restart in place, and the record of restarts.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use roundhouse_contract::{ProcessEnd, ProcessRestarts, RankStatus, TerminationMessage};
use tokio::time::Instant;

use crate::in_place::{Choice, InPlace, MAX_WITHOUT_PROGRESS};
use crate::options::Options;
use crate::ranks;
use crate::say::say;
use crate::verdict::{self, Ended};

/// Restarts in place of one worker.
#[derive(Debug, Default)]
pub(super) struct Restarts {
    in_place: InPlace,
    /// Dead processes that will be restarted, in the order in which they died.
    waiting: Vec<Ended>,
    due: Option<Instant>,
    /// Newest generation of which a process of a local rank was a member, or which it
    /// had begun to form.
    former: BTreeMap<u32, u64>,
    last: Option<ProcessEnd>,
    /// The life of a replica of several pods whose processes in this pod have ended.
    ended_life: String,
    /// Whether a process died too often.
    is_exhausted: bool,
}

impl Restarts {
    /// Time at which the waiting processes are restarted.
    pub(super) const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Whether the worker continues without the process that has ended.
    pub(super) fn accepts(&mut self, ended: &Ended, siblings: &[RankStatus], step: u64) -> bool {
        let choice = self.in_place.choose(ended.end, siblings, step);
        self.is_exhausted |= choice == Choice::TooOften;
        choice == Choice::Restart
    }

    /// Whether the worker restarts all of its processes because one of them has failed. `siblings`:
    /// last statuses of those that still ran.
    pub(super) fn accepts_all(
        &mut self,
        ended: &Ended,
        siblings: &[RankStatus],
        has_trained: bool,
        step: u64,
    ) -> bool {
        let has_trained = has_trained || self.newest_seen_generation() > 0;
        let choice = self
            .in_place
            .choose_all(ended.end, siblings, has_trained, step);
        self.is_exhausted |= choice == Choice::TooOften;
        choice == Choice::Restart
    }

    /// Schedules the restart of a process after a pause.
    pub(super) fn put_off(&mut self, ended: Ended, step: u64) {
        let pause = self.in_place.pause(step);
        self.due.get_or_insert_with(|| Instant::now() + pause);
        self.waiting.push(ended);
    }

    /// Cancels the pending restarts and returns the processes that waited for them.
    pub(super) fn give_up(&mut self) -> Vec<Ended> {
        self.due = None;
        std::mem::take(&mut self.waiting)
    }

    /// Processes that wait for their restart.
    pub(super) fn waiting(&self) -> &[Ended] {
        &self.waiting
    }

    /// Counts the restart of processes that died together. They are one incident, and the cause
    /// of it is reported.
    pub(super) fn begin(&mut self, step: u64, died: &[(TerminationMessage, Ended)]) {
        self.count(step, died);
        let number = self.in_place.in_a_row();
        for (words, ended) in died {
            let former = self.former.entry(ended.local_rank).or_default();
            *former = words.generation.max(*former);
            say(&format!(
                "restarting process {} (restart {number} of {MAX_WITHOUT_PROGRESS} without a new step): {}: {}",
                ended.local_rank,
                words.reason.as_str(),
                words.message
            ));
        }
    }

    /// Records that the processes of this life have ended, or that they run (empty).
    pub(super) fn end_life(&mut self, life: &str) {
        life.clone_into(&mut self.ended_life);
    }

    /// Records the end of processes that lost a process in another pod of their replica. That one
    /// counts.
    pub(super) fn begin_after_peer(&mut self, died: &[(TerminationMessage, Ended)]) {
        self.explain(died);
        if let Some(end) = &self.last {
            say(&format!(
                "the processes of this pod lost a process of their replica and wait for its next life: {}",
                end.message.message
            ));
        }
    }

    /// Counts the restart of all processes of a sharded worker.
    pub(super) fn begin_all(
        &mut self,
        step: u64,
        died: &[(TerminationMessage, Ended)],
        has_large_replica: bool,
    ) {
        self.count(step, died);
        let number = self.in_place.in_a_row();
        let when = if has_large_replica {
            " with those in other pods"
        } else {
            ""
        };
        if let Some(end) = &self.last {
            say(&format!(
                "process {} ended, and the processes of this worker share one copy of the state: restarting all {}{when} \
                 (restart {number} of {MAX_WITHOUT_PROGRESS} without a new step): {}: {}",
                end.local_rank,
                died.len(),
                end.message.reason.as_str(),
                end.message.message
            ));
        }
    }

    fn count(&mut self, step: u64, died: &[(TerminationMessage, Ended)]) {
        self.in_place.count(step);
        self.explain(died);
    }

    fn explain(&mut self, died: &[(TerminationMessage, Ended)]) {
        let all: Vec<Ended> = died.iter().map(|(_, ended)| ended.clone()).collect();
        let cause = verdict::cause(&all).map(|cause| cause.local_rank);
        let cause = died.iter().find(|(_, it)| Some(it.local_rank) == cause);
        self.last = cause.map(|(words, ended)| ProcessEnd {
            local_rank: ended.local_rank,
            exit_code: ended.end.code(),
            message: words.clone(),
            ended_at_seconds: now(),
        });
    }

    /// Records the last status of a dead process. It may have died while a generation formed in
    /// which its peers counted it.
    pub(super) fn has_formed(&mut self, local_rank: u32, said: &RankStatus) {
        let former = self.former.entry(local_rank).or_default();
        *former = said.generation.max(said.forming).max(*former);
    }

    /// Newest generation of which a process of this local rank was a member, or which it had begun
    /// to form. Its successor joins a newer one.
    pub(super) fn last_seen_generation(&self, local_rank: u32) -> u64 {
        self.former.get(&local_rank).copied().unwrap_or(0)
    }

    /// Newest generation of which any process of this worker was a member, or which it had begun to
    /// form. The processes of a replica are members of the same generations, so all of them join a
    /// newer one.
    pub(super) fn newest_seen_generation(&self) -> u64 {
        self.former.values().copied().max().unwrap_or(0)
    }

    /// Writes the record of restarts into the run directory.
    pub(super) fn keep(&self, options: &Options) {
        let restarts = ProcessRestarts {
            ended_life: self.ended_life.clone(),
            has_lives: options.has_large_replica(),
            total: self.in_place.total(),
            // The reader computes these from the statuses of the processes.
            preparing: Vec::new(),
            without_state: false,
            ready: false,
            last: self.last.clone(),
        };
        if let Err(error) = ranks::keep_restarts(&options.run_dir, &restarts) {
            say(&format!("{}: {error}", options.run_dir.display()));
        }
    }

    /// Returns why the last dead process was not restarted, if there were too many restarts.
    pub(super) fn words(&self) -> Option<String> {
        let number = self.in_place.in_a_row();
        self.is_exhausted
            .then(|| format!("processes were restarted {number} times without a new step"))
    }
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
    })
}
