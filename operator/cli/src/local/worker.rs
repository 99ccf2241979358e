//! One worker on this machine: an agent process where a cluster has a pod. Its container is "restarted"
//! when it fails, as a kubelet would, and its place in a generation is a file instead of an annotation.

use std::fs::OpenOptions;
use std::net::Ipv4Addr;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::Context;
use jiff::Timestamp;
use roundhouse_contract::{Action, Membership, TerminationMessage};
use roundhouse_planner::{Processes, Termination};
use rustix::process::{Pid, Signal, kill_process};

use super::launch::{self, Setting, free_port};
use super::probe::Probe;
use mending::Trouble;

mod mending;
mod pod;
mod telling;
#[cfg(test)]
mod tests;

/// Of a worker that ended before it was ready; doubles each time.
const FIRST_BACK_OFF: Duration = Duration::from_secs(1);
const LONGEST_BACK_OFF: Duration = Duration::from_secs(30);

/// A worker's attempt.
#[derive(Debug)]
pub(crate) struct Worker {
    name: String,
    index: u32,
    attempt: u32,
    /// Unique among all workers that the executor ever started.
    number: u32,
    /// Between SIGTERM and SIGKILL; the agent gives its processes less.
    grace: Duration,
    port: u16,
    child: Option<Child>,
    /// How many it had.
    lives: u32,
    /// Asks its agent for signs of life.
    probe: Option<Probe>,
    /// Exit code of an agent that was collected and not judged yet.
    ended: Option<i32>,
    restarts: u32,
    back_off: Duration,
    restart_at: Option<Instant>,
    kill_at: Option<Instant>,
    /// The same for the planner: until then others may have to wait for it.
    gone_by: Option<Timestamp>,
    completed: bool,
    created_at: Timestamp,
    ready: bool,
    /// Since when it is ready, or is not.
    ready_at: Option<Timestamp>,
    /// Whether this life of it ever was.
    was_ready: bool,
    /// The agent whose processes were told of.
    introduced: Option<u32>,
    termination: Option<Termination>,
    membership: Option<Membership>,
    /// When to write it again, if it could not be written.
    tell_at: Option<Instant>,
    trouble: Option<Trouble>,
    /// What its agent tells of its processes while it is not ready.
    processes: Option<Processes>,
}

impl Worker {
    pub(crate) fn start(
        setting: &Setting,
        name: String,
        place: (u32, u32),
        number: u32,
    ) -> anyhow::Result<Self> {
        let mut worker = Self::idle(name, place, number, setting.job.grace);
        if let Err(error) = worker.spawn(setting) {
            // The first one fails for want of a program rather than of room.
            if number == 1 {
                return Err(error);
            }
            worker.cannot_start(&error);
        }
        Ok(worker)
    }

    fn idle(name: String, (index, attempt): (u32, u32), number: u32, grace: Duration) -> Self {
        Self {
            name,
            index,
            attempt,
            number,
            grace,
            port: 0,
            child: None,
            lives: 0,
            probe: None,
            ended: None,
            restarts: 0,
            back_off: Duration::ZERO,
            restart_at: None,
            kill_at: None,
            gone_by: None,
            completed: false,
            created_at: Timestamp::now(),
            ready: false,
            ready_at: None,
            was_ready: false,
            introduced: None,
            termination: None,
            membership: None,
            tell_at: None,
            trouble: None,
            processes: None,
        }
    }

    fn spawn(&mut self, setting: &Setting) -> anyhow::Result<()> {
        let dir = self.dir(setting);
        let run_dir = dir.join("run");
        // What an earlier life said must not count for this one.
        let _ = std::fs::remove_dir_all(&run_dir);
        let _ = std::fs::remove_file(dir.join("termination"));
        std::fs::create_dir_all(&run_dir)?;
        self.port = free_port(self.number)?;
        let log_file = setting.dir.join("logs").join(format!("{}.log", self.name));
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log_file)
            .with_context(|| format!("cannot write {}", log_file.display()))?;
        let child = launch::command(setting, self, &dir)
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", setting.agent.display()))?;
        self.child = Some(child);
        self.probe = Some(Probe::start(&run_dir));
        (self.restarts, self.lives) = (self.lives, self.lives + 1);
        self.restart_at = None;
        self.was_ready = false;
        Ok(())
    }

    /// Sees whether its agent has ended, and kills it when its time is over. True if it has ended now.
    pub(crate) fn collect(&mut self) -> anyhow::Result<bool> {
        let Some(child) = &mut self.child else {
            return Ok(false);
        };
        if let Some(status) = child.try_wait()? {
            self.child = None;
            self.probe = None;
            self.ended = Some(
                status
                    .code()
                    .unwrap_or_else(|| 128 + status.signal().unwrap_or(0)),
            );
            return Ok(true);
        }
        if self.kill_at.is_some_and(|at| at <= Instant::now()) {
            self.signal(Signal::KILL);
        }
        Ok(false)
    }

    /// Sees whether it has ended or become ready, and does what a kubelet would. Nothing is left of an agent that was
    /// collected. False when the worker is gone.
    pub(crate) fn tend(&mut self, setting: &Setting) -> bool {
        if let Some(code) = self.ended.take() {
            // It is gone the next time: its last words are to be heard before.
            self.end(setting, code);
        } else if self.kill_at.is_some() && self.child.is_none() {
            return false;
        }
        self.mend(setting);
        let ready = self.child.is_some() && self.gives_signs() && self.tells_ready(setting);
        if ready != self.ready {
            self.ready = ready;
            self.ready_at = Some(Timestamp::now());
        }
        self.was_ready |= ready;
        let is_asked = setting.job.procs_per_worker > 1 && self.child.is_some() && !ready;
        self.processes = is_asked.then(|| self.tells_of_processes(setting));
        true
    }

    fn end(&mut self, setting: &Setting, exit_code: i32) {
        let text = std::fs::read_to_string(self.dir(setting).join("termination"));
        self.termination = Some(Termination {
            restarts: self.restarts,
            exit_code,
            reason: if exit_code == 0 { "Completed" } else { "Error" }.to_owned(),
            message: text
                .ok()
                .and_then(|text| TerminationMessage::parse(&text))
                .map(Box::new),
            finished_at: Some(Timestamp::now()),
        });
        self.completed = exit_code == 0;
        if !self.completed && self.kill_at.is_none() {
            self.back_off = if self.was_ready {
                Duration::ZERO
            } else {
                (self.back_off * 2).clamp(FIRST_BACK_OFF, LONGEST_BACK_OFF)
            };
            self.restart_at = Some(Instant::now() + self.back_off);
        }
    }

    /// Asks it to leave; it is gone when its process has ended.
    pub(crate) fn delete(&mut self) {
        if self.kill_at.is_none() {
            self.kill_at = Some(Instant::now() + self.grace);
            self.gone_by = Some(Timestamp::now() + self.grace);
            self.restart_at = None;
            self.signal(Signal::TERM);
        }
    }

    /// Ends it at once.
    pub(crate) fn kill(&mut self) {
        self.kill_at = Some(Instant::now());
        self.gone_by = Some(Timestamp::now());
        self.restart_at = None;
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        let pid = self
            .child
            .as_ref()
            .and_then(|child| Pid::from_raw(child.id().cast_signed()));
        if let Some(pid) = pid {
            // It may have ended in this moment; it is not reaped yet, so the pid is its own.
            let _ = kill_process(pid, signal);
        }
    }

    /// The generation of which it is the first worker, if it is. One that leaves may be, until it is told that the
    /// next one is without it.
    pub(crate) fn leads(&self) -> Option<u64> {
        let membership = self.membership.as_ref()?;
        let leads = membership.action == Action::Join && membership.node_rank == 0;
        leads.then_some(membership.generation)
    }

    /// Whether its agent gives signs of life; one that does not run is not missed.
    fn gives_signs(&self) -> bool {
        self.probe.as_ref().is_none_or(Probe::answers)
    }

    /// Its agent, if that runs.
    pub(crate) fn pid(&self) -> Option<i32> {
        self.child.as_ref().map(|child| child.id().cast_signed())
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// An address of its own: all of 127.0.0.0/8 is this machine.
    pub(crate) fn address(&self) -> String {
        let [_, high, middle, low] = self.number.to_be_bytes();
        Ipv4Addr::new(127, high.saturating_add(1), middle, low).to_string()
    }

    fn dir(&self, setting: &Setting) -> PathBuf {
        setting.workers.join(&self.name)
    }
}
