//! The processes of the worker: started, signalled, and collected when they end.
//!
//! All children are reaped in one place, orphans included: the agent is PID 1, so every process of
//! the pod that loses its parent becomes its child.

use std::collections::BTreeMap;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, wait};
use tokio::time::Instant;

use super::failure::Failure;
use super::process::start_process;
use crate::logs::LastLines;
use crate::metrics::Metrics;
use crate::options::Options;
use crate::verdict::End;

/// How long the logs of processes that have ended are read on.
const LOG_DRAIN: Duration = Duration::from_secs(1);

/// Processes that run, and what they printed.
#[derive(Default)]
pub(crate) struct Processes {
    /// By pid; each leads a process group of its own.
    running: BTreeMap<i32, u32>,
    pub(crate) last_lines: LastLines,
    readers: Vec<JoinHandle<()>>,
}

impl Processes {
    /// Starts them all, each with its environment; if one cannot be started, none stays.
    pub(crate) fn start(
        &mut self,
        options: &Options,
        metrics: &Metrics,
        environment: impl Fn(u32) -> BTreeMap<&'static str, String>,
    ) -> Result<(), Failure> {
        for local_rank in 0..options.procs {
            let started = self.start_one(options, metrics, environment(local_rank), local_rank);
            if let Err(failure) = started {
                self.signal_all(Signal::KILL);
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
        self.running.insert(pid, local_rank);
        metrics.set_up(local_rank, true);
        Ok(())
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
            // What it started itself (loaders of data, most often) does not outlive it.
            let _ = kill_process_group(pid, Signal::KILL);
            metrics.set_up(local_rank, false);
            ended.push((local_rank, end));
        }
        ended
    }

    /// Asks each of our processes to end, and nothing that they have started: a process that leaves at a step boundary
    /// needs its loaders of data until then.
    pub(crate) fn ask_to_leave(&self) {
        for pid in self.pids() {
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    /// Signals our processes and all that they have started.
    pub(crate) fn signal_all(&self, signal: Signal) {
        for pid in self.pids() {
            let _ = kill_process_group(pid, signal);
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
