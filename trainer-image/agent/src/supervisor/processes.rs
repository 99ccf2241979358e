//! The processes of the worker: started, signalled, and collected when they end.
//!
//! All children are reaped in one place, orphans included: the agent adopts every process below it that loses its
//! parent, whatever session or process group it is in. So all that is left of a process can be found, and ended.

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

/// How long the logs of processes that have ended are read on.
const LOG_DRAIN: Duration = Duration::from_secs(1);
/// How long what a process has left behind may take to end on SIGTERM, if nothing says otherwise.
pub(crate) const REST_GRACE: Duration = Duration::from_secs(5);
/// How long a process that was killed may wait in the kernel before the log says so, and before an agent that ends
/// waits for it no more.
const STUCK: Duration = Duration::from_secs(10);
const FIRST_LOOK: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Processes that run, and what they printed.
#[derive(Default)]
pub(crate) struct Processes {
    /// By pid; each leads a process group of its own.
    running: BTreeMap<i32, u32>,
    pub(crate) last_lines: LastLines,
    readers: Vec<JoinHandle<()>>,
    /// Whether they were asked to end: what they have started may then take as long as they may.
    asked: bool,
    /// Process groups of which every process was asked.
    asked_groups: BTreeSet<i32>,
    /// Processes that an OOM killer had killed when the last one was started.
    oom_kills: Option<u64>,
}

/// What follows when a process that was killed stays in the kernel, for a volume that does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IfStuck {
    /// Wait: nothing may start beside it.
    Wait,
    /// End without it.
    GiveUp,
}

impl Processes {
    /// Starts them all, each with its environment; if one cannot be started, none stays.
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

    /// Starts one.
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

    /// Whether no OOM killer has killed a process since the last one was started, if the kernel says so.
    pub(crate) fn has_memory(&self) -> Option<bool> {
        Some(memory::oom_kills()? == self.oom_kills?)
    }

    /// One that it has not started.
    #[cfg(test)]
    pub(crate) fn pretend(&mut self, pid: i32, local_rank: u32) {
        self.running.insert(pid, local_rank);
    }

    pub(crate) fn are_gone(&self) -> bool {
        self.running.is_empty()
    }

    /// Process ids by local rank.
    pub(crate) fn running(&self) -> impl Iterator<Item = (i32, u32)> {
        self.running.iter().map(|(pid, local)| (*pid, *local))
    }

    /// Collects everything that has ended, our processes and strangers alike; ours are returned.
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

    /// What a process started itself (loaders of data, most often) does not outlive it beside its siblings. The orphans of
    /// a last process are left to [`Self::clear`].
    fn end_what_it_started(&self, pid: Pid, local_rank: u32) {
        let _ = kill_process_group(pid, Signal::KILL);
        if self.running.is_empty() {
            return;
        }
        let all = processes();
        let rank = local_rank.to_string();
        for orphan in self.orphans(&all) {
            // Those of its siblings have another rank.
            if variable(orphan.pid, LOCAL_RANK).as_ref() == Some(&rank) {
                send(&orphan, Signal::KILL);
                send_all(&below(orphan.pid, &all), Signal::KILL);
            }
        }
    }

    /// Children of the agent that it did not start.
    fn orphans(&self, all: &[Process]) -> Vec<Process> {
        let own = std::process::id().cast_signed();
        let is_orphan =
            |it: &&Process| it.parent == own && it.runs && !self.running.contains_key(&it.pid);
        all.iter().filter(is_orphan).copied().collect()
    }

    /// Asks each of our processes to end, and nothing that they have started: a process that leaves at a step boundary
    /// needs its loaders of data until then.
    pub(crate) fn ask_to_leave(&mut self) {
        self.asked = true;
        for pid in self.pids() {
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    /// Asks our processes to end, and all of their process groups: a shell that runs a script does not pass a signal on.
    pub(crate) fn ask_groups_to_leave(&mut self) {
        self.asked = true;
        self.asked_groups.extend(self.running.keys());
        for pid in self.pids() {
            let _ = kill_process_group(pid, Signal::TERM);
        }
    }

    /// Kills our processes and all that they have started, whatever session it is in.
    pub(crate) fn kill_all(&self) {
        for pid in self.pids() {
            let _ = kill_process_group(pid, Signal::KILL);
        }
        send_all(&descendants(), Signal::KILL);
    }

    /// Ends what processes that have ended left behind: SIGTERM to each orphan that was not asked yet, and SIGKILL to
    /// all from `until` on. Returns when nothing is left, however often a process forks meanwhile.
    pub(crate) async fn clear(&mut self, until: Instant, if_stuck: IfStuck) {
        let (mut asked, mut pause) = (BTreeSet::new(), FIRST_LOOK);
        let (mut has_said, mut warned) = (false, false);
        loop {
            // None of ours runs any more.
            let ended = loop {
                match wait(WaitOptions::NOHANG) {
                    Ok(Some(_)) => {}
                    last => break last,
                }
            };
            // Without a child there is no descendant. A look at /proc proves less: a process may start another one and end
            // while it lasts.
            if ended.is_err_and(|error| error == Errno::CHILD) {
                return;
            }
            let all = processes();
            let left = below(std::process::id().cast_signed(), &all);
            let orphans = self.orphans(&all);
            if !orphans.is_empty() && !std::mem::replace(&mut has_said, true) {
                let pids: Vec<String> = orphans.iter().map(|it| it.pid.to_string()).collect();
                say(&format!(
                    "processes that have ended left others behind, which are ended: pids {}",
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
                    "{} processes were killed and wait in the kernel, for a volume that does not answer",
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

    /// One may have ended in this moment.
    fn pids(&self) -> impl Iterator<Item = Pid> {
        self.running.keys().filter_map(|pid| Pid::from_raw(*pid))
    }

    /// Gives the last log lines time to arrive; a stranger that still holds a pipe is not waited for.
    pub(crate) async fn drain_logs(&self) {
        let deadline = Instant::now() + LOG_DRAIN;
        while !self.readers.iter().all(JoinHandle::is_finished) && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
