//! One worker on this machine: an agent process instead of a pod. The executor restarts a failed
//! agent, as the kubelet restarts a container, and writes the membership to a file instead of an
//! annotation.

use std::fs::OpenOptions;
use std::net::Ipv4Addr;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::Context;
use jiff::Timestamp;
use roundhouse_contract::earlier::Earlier;
use roundhouse_contract::{Action, Membership, TerminationMessage};
use roundhouse_planner::{Processes, Termination};
use rustix::process::{Pid, Signal, kill_process};

use super::launch::{self, free_port};
use super::launch_plan::LaunchPlan;
use super::probe::Probe;
use retry::Problem;

mod pod;
mod report;
mod retry;
#[cfg(test)]
mod tests;

/// Back-off of a worker that ended before it was ready; it doubles each time.
const FIRST_BACK_OFF: Duration = Duration::from_secs(1);
const LONGEST_BACK_OFF: Duration = Duration::from_secs(30);

/// The processes that were printed last.
#[derive(Debug, Default)]
struct Printed {
    pids: Vec<u32>,
    /// Whether a membership was issued whose processes were not printed yet.
    is_outdated: bool,
}

/// One attempt of a worker, which corresponds to one pod.
#[derive(Debug)]
pub(crate) struct Worker {
    name: String,
    index: u32,
    attempt: u32,
    /// Unique among all workers of this executor.
    number: u32,
    /// Time between SIGTERM and SIGKILL; the agent gives its processes less.
    grace: Duration,
    port: u16,
    child: Option<Child>,
    /// Number of agents that this worker has started.
    lives: u32,
    probe: Option<Probe>,
    /// Exit code of an agent that was reaped but not handled yet.
    ended: Option<i32>,
    restarts: u32,
    back_off: Duration,
    restart_at: Option<Instant>,
    kill_at: Option<Instant>,
    /// `kill_at` for the planner: other workers may have to wait for this one until then.
    gone_by: Option<Timestamp>,
    completed: bool,
    created_at: Timestamp,
    ready: bool,
    /// When `ready` changed last.
    ready_at: Option<Timestamp>,
    /// Whether the present agent was ever ready.
    was_ready: bool,
    printed: Printed,
    termination: Option<Termination>,
    membership: Option<Membership>,
    earlier: Vec<Earlier>,
    /// When to write the membership again after a failed write.
    write_again_at: Option<Instant>,
    problem: Option<Problem>,
    /// The state of the processes that the agent reports while the worker is not ready.
    processes: Option<Processes>,
}

impl Worker {
    pub(crate) fn start(
        plan: &LaunchPlan,
        name: String,
        place: (u32, u32),
        number: u32,
    ) -> anyhow::Result<Self> {
        let mut worker = Self::idle(name, place, number, plan.job.grace);
        if let Err(error) = worker.spawn(plan) {
            // If the first worker cannot start, the program is missing. Later errors are
            // temporary, for example a full disk.
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
            printed: Printed::default(),
            termination: None,
            membership: None,
            earlier: Vec::new(),
            write_again_at: None,
            problem: None,
            processes: None,
        }
    }

    fn spawn(&mut self, plan: &LaunchPlan) -> anyhow::Result<()> {
        let dir = self.dir(plan);
        let run_dir = dir.join("run");
        // Reports of an earlier agent must not count for this one.
        let _ = std::fs::remove_dir_all(&run_dir);
        let _ = std::fs::remove_file(dir.join("termination"));
        std::fs::create_dir_all(&run_dir)?;
        self.port = free_port(self.number)?;
        let log_file = plan.dir.join("logs").join(format!("{}.log", self.name));
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&log_file)
            .with_context(|| format!("cannot write {}", log_file.display()))?;
        let child = launch::command(plan, self, &dir)
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {}", plan.agent.display()))?;
        self.child = Some(child);
        self.probe = Some(Probe::start(&run_dir));
        (self.restarts, self.lives) = (self.lives, self.lives + 1);
        self.restart_at = None;
        self.was_ready = false;
        Ok(())
    }

    /// Reaps the agent if it has ended, and kills it when its grace period is over. Returns true if
    /// the agent has ended now.
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

    /// Handles an ended agent, restarts it if due, and updates readiness, as the kubelet does. All
    /// processes of an ended agent must be gone before. Returns false when the worker is gone.
    pub(crate) fn supervise(&mut self, plan: &LaunchPlan) -> bool {
        if let Some(code) = self.ended.take() {
            // A deleted worker is removed only in the next call, so the planner sees its exit
            // first.
            self.end(plan, code);
        } else if self.kill_at.is_some() && self.child.is_none() {
            return false;
        }
        self.retry(plan);
        let ready = self.child.is_some() && self.is_responsive() && self.is_reported_ready(plan);
        if ready != self.ready {
            self.ready = ready;
            self.ready_at = Some(Timestamp::now());
        }
        self.was_ready |= ready;
        let is_asked = plan.job.procs_per_worker > 1 && self.child.is_some() && !ready;
        self.processes = is_asked.then(|| self.reported_processes(plan));
        true
    }

    fn end(&mut self, plan: &LaunchPlan, exit_code: i32) {
        let text = std::fs::read_to_string(self.dir(plan).join("termination"));
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

    /// Asks the worker to leave (SIGTERM); after the grace period it is killed.
    pub(crate) fn delete(&mut self) {
        if self.kill_at.is_none() {
            self.kill_at = Some(Instant::now() + self.grace);
            self.gone_by = Some(Timestamp::now() + self.grace);
            self.restart_at = None;
            self.signal(Signal::TERM);
        }
    }

    /// Kills the worker (SIGKILL).
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
            // The agent may have ended, but it is not reaped yet, so no other process has its pid.
            let _ = kill_process(pid, signal);
        }
    }

    /// The generation in which this worker has node rank 0, if any. A leaving worker keeps it until
    /// a membership with the action Leave.
    pub(crate) fn leads(&self) -> Option<u64> {
        let membership = self.membership.as_ref()?;
        let leads = membership.action == Action::Join && membership.node_rank == 0;
        leads.then_some(membership.generation)
    }

    /// Whether the agent answers the probe; true if no agent runs.
    fn is_responsive(&self) -> bool {
        self.probe.as_ref().is_none_or(Probe::answers)
    }

    /// Pid of the agent, if one runs.
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

    /// An address in 127.0.0.0/8 for this worker alone; the whole range is this machine.
    pub(crate) fn address(&self) -> String {
        let [_, high, middle, low] = self.number.to_be_bytes();
        Ipv4Addr::new(127, high.saturating_add(1), middle, low).to_string()
    }

    fn dir(&self, plan: &LaunchPlan) -> PathBuf {
        plan.workers.join(&self.name)
    }
}
