//! What agents that have ended left behind. An agent ends all that its processes have started; one that was killed cannot.
//! This program adopts orphans, so they become its children, and it kills them.

use std::time::{Duration, Instant};

use roundhouse_process_tree::{Process, below, collect_orphans, processes, send_all};
use rustix::process::Signal;

/// Between two looks at all processes of the machine.
const PAUSE: Duration = Duration::from_millis(10);
/// Looks in a row that find nothing, after which nothing is left.
const CLEAN_LOOKS: u32 = 2;
/// A process that was killed may wait in the kernel for a volume; after this time nothing waits for it.
const STUCK: Duration = Duration::from_secs(10);

/// Orphans that may be there.
#[derive(Debug, Default)]
pub(super) struct Orphans {
    /// Since an agent ended, until two looks in a row find nothing: a process may start another one and end during a look.
    since: Option<Instant>,
    clean_looks: u32,
    look_at: Option<Instant>,
}

impl Orphans {
    /// An agent has ended.
    pub(super) fn expect(&mut self) {
        *self = Self {
            since: Some(Instant::now()),
            ..Self::default()
        };
    }

    /// Whether something may be left of an agent that has ended: nothing may start beside it.
    pub(super) fn are_left(&self) -> bool {
        self.since.is_some()
    }

    /// Kills what is left; `agents`: children of this program that live, and end what is below them themselves.
    pub(super) fn tend(&mut self, agents: &[i32]) {
        let now = Instant::now();
        let Some(since) = self.since else { return };
        if self.look_at.is_some_and(|at| at > now) {
            return;
        }
        let all = processes();
        collect_orphans(&all, agents);
        let left = left(std::process::id().cast_signed(), &all, agents);
        send_all(&left, Signal::KILL);
        self.clean_looks = if left.is_empty() {
            self.clean_looks + 1
        } else {
            0
        };
        let is_over = self.clean_looks >= CLEAN_LOOKS || now >= since + STUCK;
        self.since = Some(since).filter(|_| !is_over);
        self.look_at = Some(now + PAUSE);
    }
}

/// All that is below this program, but for agents and what is below them. Pure.
fn left(own: i32, all: &[Process], agents: &[i32]) -> Vec<Process> {
    let orphans = all.iter().filter(|it| it.parent == own && it.runs);
    let orphans = orphans.filter(|it| !agents.contains(&it.pid));
    orphans
        .flat_map(|orphan| std::iter::once(*orphan).chain(below(orphan.pid, all)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_below_this_program_is_left_but_for_what_agents_look_after() {
        let process = |pid, parent, runs| Process {
            pid,
            parent,
            group: pid,
            started: 0,
            runs,
        };
        let all = [
            process(10, 1, true),
            process(20, 10, true),
            process(21, 20, true),
            process(30, 10, true),
            process(31, 30, true),
            process(40, 10, false),
        ];
        let pids: Vec<i32> = left(10, &all, &[20]).iter().map(|it| it.pid).collect();
        assert_eq!(pids, [30, 31]);
    }
}
