//! Kills the processes that a killed agent left behind. An agent that ends by itself ends all its
//! processes; a killed agent cannot. This program adopts orphans, so they become its children.
//!
//! It may have had other children before: a shell that replaces itself by this program leaves its
//! own, such as the `tee` of `run --local > >(tee log)`. They are no orphans.

use std::time::{Duration, Instant};

use roundhouse_process_tree::{Process, below, collect_orphans, processes, send_all};
use rustix::process::Signal;

/// Pause between two scans of the machine's processes.
const PAUSE: Duration = Duration::from_millis(10);
/// Scans in a row that must find no orphan.
const CLEAN_SCANS: u32 = 2;
/// A killed process may wait in the kernel for a volume. After this time the run no longer waits
/// for it.
const STUCK: Duration = Duration::from_secs(10);

/// Searches for orphans after an agent has ended.
#[derive(Debug)]
pub(super) struct Orphans {
    /// Children that this program had before the first agent started.
    older: Vec<Process>,
    /// When an agent ended; `None` after [`CLEAN_SCANS`] clean scans. One scan is not enough: a
    /// process may start another one and end during the scan.
    since: Option<Instant>,
    clean_scans: u32,
    scan_at: Option<Instant>,
}

impl Orphans {
    /// Remembers the present children of this program. No agent may have started.
    pub(super) fn new() -> Self {
        let own = std::process::id().cast_signed();
        let children = processes().into_iter().filter(|it| it.parent == own);
        Self {
            older: children.collect(),
            since: None,
            clean_scans: 0,
            scan_at: None,
        }
    }

    /// Begins the search, because an agent has ended.
    pub(super) fn expect(&mut self) {
        self.since = Some(Instant::now());
        self.clean_scans = 0;
        self.scan_at = None;
    }

    /// Whether processes of an ended agent may be left; no worker may start beside them.
    pub(super) fn are_left(&self) -> bool {
        self.since.is_some()
    }

    /// Scans for orphans and kills them. `agents` are the living children of this program, which
    /// end their own processes.
    pub(super) fn kill(&mut self, agents: &[i32]) {
        let now = Instant::now();
        let Some(since) = self.since else { return };
        if self.scan_at.is_some_and(|at| at > now) {
            return;
        }
        let all = processes();
        collect_orphans(&all, agents);
        let own = std::process::id().cast_signed();
        let left = left(own, &all, agents, &self.older);
        send_all(&left, Signal::KILL);
        self.clean_scans = if left.is_empty() {
            self.clean_scans + 1
        } else {
            0
        };
        let is_over = self.clean_scans >= CLEAN_SCANS || now >= since + STUCK;
        self.since = Some(since).filter(|_| !is_over);
        self.scan_at = Some(now + PAUSE);
    }
}

/// All descendants of this program except agents, older children, and their descendants. Pure.
fn left(own: i32, all: &[Process], agents: &[i32], older: &[Process]) -> Vec<Process> {
    let orphans = all.iter().filter(|it| it.parent == own && it.runs);
    // A later process may have the pid of an older child.
    let is_older = |it: &Process| {
        let mut same = older.iter().map(|older| (older.pid, older.started));
        same.any(|older| older == (it.pid, it.started))
    };
    let orphans = orphans.filter(|it| !agents.contains(&it.pid) && !is_older(it));
    orphans
        .flat_map(|orphan| std::iter::once(*orphan).chain(below(orphan.pid, all)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orphans_exclude_agents_and_their_processes() {
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
        let pids: Vec<i32> = left(10, &all, &[20], &[]).iter().map(|it| it.pid).collect();
        assert_eq!(pids, [30, 31]);
    }

    #[test]
    fn children_from_before_the_run_are_no_orphans() {
        let process = |pid, parent, started| Process {
            pid,
            parent,
            group: pid,
            started,
            runs: true,
        };
        let older = [process(30, 10, 1), process(40, 10, 1)];
        // The pid of an older child is used again.
        let all = [process(30, 10, 1), process(31, 30, 5), process(40, 10, 9)];
        let left = left(10, &all, &[], &older);
        assert_eq!(left.iter().map(|it| it.pid).collect::<Vec<_>>(), [40]);
    }
}
