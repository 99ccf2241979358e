//! The processes of the worker: they are started, signalled, and collected when they end.
//!
//! One place reaps all children, including orphans: the agent adopts every process below it that
//! loses its parent, in any session or process group. So the agent can find and end everything that
//! a process leaves behind.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::JoinHandle;
use std::time::Duration;

use roundhouse_contract::environment::LOCAL_RANK;
use roundhouse_process_tree::{Process, below, descendants, processes, send, send_all, variable};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, wait};
use tokio::time::Instant;

use super::failure::Failure;
use super::memory;
use super::process::start_process;
use crate::logs::LastLines;
use crate::metrics::Metrics;
use crate::options::Options;
use crate::say::say;
use crate::verdict::End;

/// How long to read the logs of processes after they have ended.
const LOG_DRAIN: Duration = Duration::from_secs(1);
/// Default time between SIGTERM and SIGKILL for processes that were left behind.
pub(crate) const REST_GRACE: Duration = Duration::from_secs(5);
/// How long a killed process may wait in the kernel before the log reports it, and before an agent
/// that ends stops waiting for it.
const STUCK: Duration = Duration::from_secs(10);
const FIRST_LOOK: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Running processes and their last output.
#[derive(Default)]
pub(crate) struct Processes {
    /// Local ranks by pid. Each process leads its own process group.
    running: BTreeMap<i32, u32>,
    pub(crate) last_lines: LastLines,
    readers: Vec<JoinHandle<()>>,
    /// Whether the processes were asked to end. Then the processes that they started keep
    /// their time to end.
    asked: bool,
    /// Process groups in which every process was asked to end.
    asked_groups: BTreeSet<i32>,
    /// Number of OOM kills when the last process was started.
    oom_kills: Option<u64>,
}

/// What to do if a killed process stays in the kernel because a volume does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IfStuck {
    /// Wait, because no other process may start beside it.
    Wait,
    /// End without waiting for it.
    GiveUp,
}

impl Processes {
    /// Starts all processes, each with its environment. If one cannot be started, all are killed.
    pub(crate) fn start(
        &mut self,
        options: &Options,
        metrics: &Metrics,
        environment: impl Fn(u32) -> BTreeMap<&'static str, String>,
    ) -> Result<(), Failure> {
        self.asked = false;
        self.asked_groups.clear();
        for local_rank in 0..options.procs {
            let started = self.start_one(options, metrics, environment(local_rank), local_rank);
            if let Err(failure) = started {
                self.kill_all();
                return Err(failure);
            }
        }
        Ok(())
    }

    /// Starts the process of one local rank.
    pub(crate) fn start_one(
        &mut self,
        options: &Options,
        metrics: &Metrics,
        environment: BTreeMap<&'static str, String>,
        local_rank: u32,
    ) -> Result<(), Failure> {
        self.readers.retain(|reader| !reader.is_finished());
        let pid = start_process(
            options,
            environment,
            local_rank,
            &self.last_lines,
            &mut self.readers,
        )?;
        self.oom_kills = memory::oom_kills();
        self.running.insert(pid, local_rank);
        metrics.set_up(local_rank, true);
        Ok(())
    }

    /// Whether no OOM kill has happened since the last process was started, if
    /// the kernel reports it.
    pub(crate) fn has_memory(&self) -> Option<bool> {
        Some(memory::oom_kills()? == self.oom_kills?)
    }

    /// Adds a process that was started elsewhere.
    #[cfg(test)]
    pub(crate) fn add_foreign(&mut self, pid: i32, local_rank: u32) {
        self.running.insert(pid, local_rank);
    }

    pub(crate) fn are_gone(&self) -> bool {
        self.running.is_empty()
    }

    /// Process ids with their local ranks.
    pub(crate) fn running(&self) -> impl Iterator<Item = (i32, u32)> {
        self.running.iter().map(|(pid, local)| (*pid, *local))
    }

    /// Collects everything that has ended, including orphans, and returns the
    /// processes of the worker.
    pub(crate) fn reap(&mut self, metrics: &Metrics) -> Vec<(u32, End)> {
        let mut ended = Vec::new();
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let Some(local_rank) = self.running.remove(&pid.as_raw_nonzero().get()) else {
                continue;
            };
            let end = match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => End::Exited(code),
                (None, Some(signal)) => End::Signaled(signal),
                (None, None) => continue,
            };
            if !self.asked {
                self.end_what_it_started(pid, local_rank);
            }
            metrics.set_up(local_rank, false);
            ended.push((local_rank, end));
        }
        ended
    }

    /// Ends the processes that a dead process has started, most often data loaders, while its
    /// siblings continue. [`Self::clear`] handles the orphans of the last process.
    fn end_what_it_started(&self, pid: Pid, local_rank: u32) {
        let _ = kill_process_group(pid, Signal::KILL);
        if self.running.is_empty() {
            return;
        }
        let all = processes();
        let rank = local_rank.to_string();
        for orphan in self.orphans(&all) {
            // Orphans of the siblings have another rank.
            if variable(orphan.pid, LOCAL_RANK).as_ref() == Some(&rank) {
                send(&orphan, Signal::KILL);
                send_all(&below(orphan.pid, &all), Signal::KILL);
            }
        }
    }

    /// Returns the children that the agent did not start itself.
    fn orphans(&self, all: &[Process]) -> Vec<Process> {
        let own = std::process::id().cast_signed();
        let is_orphan =
            |it: &&Process| it.parent == own && it.runs && !self.running.contains_key(&it.pid);
        all.iter().filter(is_orphan).copied().collect()
    }

    /// Sends SIGTERM to each process of the worker but not to the processes that it has started: a
    /// process that leaves at a step boundary needs its data loaders until then.
    pub(crate) fn ask_to_leave(&mut self) {
        self.asked = true;
        for pid in self.pids() {
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    /// Sends SIGTERM to the process groups of the worker's processes, because a shell that runs a
    /// script does not pass a signal on.
    pub(crate) fn ask_groups_to_leave(&mut self) {
        self.asked = true;
        self.asked_groups.extend(self.running.keys());
        for pid in self.pids() {
            let _ = kill_process_group(pid, Signal::TERM);
        }
    }

    /// Kills the worker's processes and everything that they have started, in any session.
    pub(crate) fn kill_all(&self) {
        for pid in self.pids() {
            let _ = kill_process_group(pid, Signal::KILL);
        }
        send_all(&descendants(), Signal::KILL);
    }

    /// Ends the processes that ended processes have left behind: sends SIGTERM to each orphan that
    /// was not asked yet, and from `until` on SIGKILL to all. Returns when nothing is left, even
    /// if processes keep forking.
    pub(crate) async fn clear(&mut self, until: Instant, if_stuck: IfStuck) {
        let (mut asked, mut pause) = (BTreeSet::new(), FIRST_LOOK);
        let (mut has_said, mut warned) = (false, false);
        loop {
            // None of the worker's processes runs any more.
            let ended = loop {
                match wait(WaitOptions::NOHANG) {
                    Ok(Some(_)) => {}
                    last => break last,
                }
            };
            // Without children there are no descendants. A scan of /proc proves less, because a
            // process may start another one and end during the scan.
            if ended.is_err_and(|error| error == Errno::CHILD) {
                return;
            }
            let all = processes();
            let left = below(std::process::id().cast_signed(), &all);
            let orphans = self.orphans(&all);
            if !orphans.is_empty() && !std::mem::replace(&mut has_said, true) {
                let pids: Vec<String> = orphans.iter().map(|it| it.pid.to_string()).collect();
                say(&format!(
                    "ending processes that were left behind by others: pids {}",
                    pids.join(" ")
                ));
            }
            let now = Instant::now();
            if now < until {
                let known = |it: &&Process| !self.asked_groups.contains(&it.group);
                for orphan in orphans.iter().filter(known) {
                    if asked.insert((orphan.pid, orphan.started)) {
                        send(orphan, Signal::TERM);
                    }
                }
            } else {
                send_all(&left, Signal::KILL);
            }
            if now >= until + STUCK && !std::mem::replace(&mut warned, true) {
                say(&format!(
                    "{} processes were killed but wait in the kernel for a volume that does not answer",
                    left.len()
                ));
                if if_stuck == IfStuck::GiveUp {
                    return;
                }
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Returns the pids of the processes. Some may have ended just now.
    fn pids(&self) -> impl Iterator<Item = Pid> {
        self.running.keys().filter_map(|pid| Pid::from_raw(*pid))
    }

    /// Gives the last log lines time to arrive, but does not wait for other processes that
    /// still hold a pipe.
    pub(crate) async fn drain_logs(&self) {
        let deadline = Instant::now() + LOG_DRAIN;
        while !self.readers.iter().all(JoinHandle::is_finished) && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
