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
use roundhouse_contract::{Action, Membership, TerminationMessage, paths};
use roundhouse_planner::{Processes, Termination};
use rustix::process::{Pid, Signal, kill_process};

use super::launch::{self, Setting, free_port};

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
        let mut worker = Self::idle(name, place, number, setting.grace);
        std::fs::create_dir_all(worker.dir(setting))?;
        worker.spawn(setting)?;
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
            .open(log_file)?;
        let child = launch::command(setting, self, &dir)
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", setting.agent.display()))?;
        self.child = Some(child);
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
    pub(crate) fn tend(&mut self, setting: &Setting) -> anyhow::Result<bool> {
        if let Some(code) = self.ended.take() {
            // It is gone the next time: its last words are to be heard before.
            self.end(setting, code);
        } else if self.kill_at.is_some() && self.child.is_none() {
            return Ok(false);
        }
        if self.restart_at.is_some_and(|at| at <= Instant::now()) {
            self.restarts += 1;
            self.spawn(setting)?;
        }
        let ready = self.child.is_some() && self.tells_ready(setting);
        if ready != self.ready {
            self.ready = ready;
            self.ready_at = Some(Timestamp::now());
        }
        self.was_ready |= ready;
        let is_asked = setting.procs > 1 && self.child.is_some() && !ready;
        self.processes = is_asked.then(|| self.tells_of_processes(setting));
        Ok(true)
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

    /// Gives it a place, in a file that is there at once as a whole.
    pub(crate) fn tell(&mut self, setting: &Setting, membership: Membership) -> anyhow::Result<()> {
        let file = self.dir(setting).join(paths::MEMBERSHIP_FILE);
        let partial = file.with_extension("partial");
        std::fs::write(&partial, membership.to_json()?)?;
        std::fs::rename(&partial, &file)?;
        self.membership = Some(membership);
        Ok(())
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
        setting.dir.join("workers").join(&self.name)
    }
}
