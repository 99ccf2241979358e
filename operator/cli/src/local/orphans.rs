//! Kills the processes that a killed agent left behind. An agent that ends by itself ends all its
//! processes; a killed agent cannot. This program adopts orphans, so they become its children.

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
#[derive(Debug, Default)]
pub(super) struct Orphans {
    /// When an agent ended; `None` after [`CLEAN_SCANS`] clean scans. One scan is not enough: a
    /// process may start another one and end during the scan.
    since: Option<Instant>,
    clean_scans: u32,
    scan_at: Option<Instant>,
}

impl Orphans {
    /// Begins the search, because an agent has ended.
    pub(super) fn expect(&mut self) {
        *self = Self {
            since: Some(Instant::now()),
            ..Self::default()
        };
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
        let left = left(std::process::id().cast_signed(), &all, agents);
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

/// All descendants of this program except agents and their descendants. Pure.
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
        let pids: Vec<i32> = left(10, &all, &[20]).iter().map(|it| it.pid).collect();
        assert_eq!(pids, [30, 31]);
    }
}
