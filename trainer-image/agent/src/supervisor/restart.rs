//! Restart mode: performs the actions of the machine in [`crate::restart`].

use std::time::Duration;

use roundhouse_contract::environment::ScriptEnvironment;
use roundhouse_contract::{ExitCode, Membership, TerminationMessage, termination::Reason};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use super::at;
use super::failure::Failure;
use super::processes::{IfStuck, Processes, REST_GRACE};
use super::signals::Signals;
use super::stall::{self, Watch};
use super::statuses::Statuses;
use crate::kubeflow::Reports;
use crate::membership::{MembershipWatch, POLL_INTERVAL};
use crate::metrics::Metrics;
use crate::options::Options;
use crate::ranks;
use crate::restart::{Action, Event, Machine, Outcome, Timeouts};
use crate::say::say;
use crate::verdict::{self, End};
use crate::watchdog::{Limits, Policy, Stall, Watchdog};

/// The worker of a script.
pub(crate) struct Worker<'a> {
    options: &'a Options,
    metrics: &'a Metrics,
    reports: Reports,
    machine: Machine,
    membership: MembershipWatch,
    processes: Processes,
    statuses: Statuses,
    watch: Watch,
    stall: Option<Stall>,
    /// Time until which all processes that were started must end after SIGTERM.
    rest_until: Option<std::time::Instant>,
}

impl<'a> Worker<'a> {
    /// Enters the lobby. The present document of the membership file belongs
    /// to an earlier container.
    pub(crate) fn enter_lobby(options: &'a Options, metrics: &'a Metrics) -> Self {
        let reports = Reports::default();
        let (membership, found) = MembershipWatch::start(&options.membership_file);
        let timeouts = Timeouts {
            grace: options.grace(),
            peer_failure_window: Duration::from_secs(options.peer_failure_window_seconds),
            stalled: options.grace().min(stall::GRACE),
        };
        Self {
            options,
            metrics,
            machine: Machine::new(options.procs, found, timeouts),
            membership,
            processes: Processes::default(),
            statuses: Statuses::enter_lobby(options, reports.clone()),
            reports,
            watch: Watch::new(Watchdog::new(limits(options)), &options.run_dir),
            stall: None,
            rest_until: None,
        }
    }

    /// Runs until the worker ends.
    pub(crate) async fn run(
        mut self,
        signals: &mut Signals,
    ) -> Result<(i32, TerminationMessage), Failure> {
        self.reports.listen().await;
        let mut polls = interval(POLL_INTERVAL);
        polls.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            for event in self.events(signals, &mut polls).await {
                let now = std::time::Instant::now();
                for action in self.machine.apply(event, now) {
                    if let Some(end) = self.act(action).await? {
                        self.processes.drain_logs().await;
                        return Ok(end);
                    }
                }
            }
            self.statuses
                .refresh(&self.options.run_dir, self.machine.is_running());
        }
    }

    /// Waits for the next events.
    async fn events(&mut self, signals: &mut Signals, polls: &mut Interval) -> Vec<Event> {
        let due = self.machine.wake_at().map(Instant::from_std);
        tokio::select! {
            _ = signals.child.recv() => self.reap(),
            _ = signals.terminate.recv() => vec![Event::LeaveRequested],
            _ = signals.interrupt.recv() => vec![Event::LeaveRequested],
            _ = polls.tick() => self.membership.poll().map(Event::MembershipChanged).into_iter().collect(),
            () = self.watch.tick(), if self.machine.is_running() => self.look(),
            () = at(due) => vec![Event::Tick],
        }
    }

    fn reap(&mut self) -> Vec<Event> {
        let ended = self.processes.reap(self.metrics);
        for (local_rank, end) in &ended {
            say(&format!("process {local_rank} {}", words(*end)));
        }
        let events = ended.into_iter();
        events
            .map(|(local_rank, end)| Event::Ended(local_rank, end))
            .collect()
    }

    fn look(&mut self) -> Vec<Event> {
        let statuses = &self.statuses;
        self.stall = self
            .watch
            .look(&self.processes, |local| statuses.judged(local));
        self.stall.iter().map(|_| Event::Stalled).collect()
    }

    async fn act(&mut self, action: Action) -> Result<Option<(i32, TerminationMessage)>, Failure> {
        match action {
            Action::Start(membership) => {
                // No process of a generation may run when the next one starts.
                self.clear(IfStuck::Wait).await;
                self.start(&membership)?;
            }
            Action::Terminate => {
                self.processes.ask_groups_to_leave();
                self.rest_until = self.machine.wake_at();
            }
            Action::Kill => {
                self.processes.kill_all();
                self.rest_until = Some(std::time::Instant::now());
            }
            Action::Exit(outcome) => {
                self.clear(IfStuck::GiveUp).await;
                return Ok(Some(self.end(outcome)));
            }
        }
        Ok(None)
    }

    /// Ends the processes that were left behind.
    async fn clear(&mut self, if_stuck: IfStuck) {
        let unasked = || std::time::Instant::now() + REST_GRACE.min(self.options.grace());
        let until = self.rest_until.take().unwrap_or_else(unasked);
        self.processes.clear(until.into(), if_stuck).await;
    }

    fn start(&mut self, membership: &Membership) -> Result<(), Failure> {
        let Options { run_dir, job, .. } = self.options;
        let environment =
            |local_rank| ScriptEnvironment::of(membership, local_rank, job, run_dir.clone());
        let first = environment(0);
        say(&format!(
            "generation {}: ranks from {} of {}, rendezvous at {} port {}",
            first.generation, first.rank, first.world_size, first.master_address, first.master_port
        ));
        self.statuses.begin(membership, run_dir);
        self.watch.forget();
        self.processes.last_lines.forget();
        self.processes
            .start(self.options, self.metrics, |local_rank| {
                let mut pairs = environment(local_rank).to_pairs();
                pairs.extend(one_thread(self.options.procs));
                pairs.extend(self.reports.begin(run_dir, local_rank));
                pairs
            })
    }

    fn end(&mut self, outcome: Outcome) -> (i32, TerminationMessage) {
        // The last reports of progress may have arrived after the last refresh.
        self.statuses.refresh(&self.options.run_dir, false);
        let status = |local_rank| self.statuses.of(local_rank);
        match outcome {
            Outcome::Completed => {
                let message = verdict::completed_script(status(0).cloned());
                (ExitCode::Done.code(), message)
            }
            Outcome::Left => {
                let mut message = verdict::completed(status(0).cloned());
                message.reason = Reason::Left;
                "left on request".clone_into(&mut message.message);
                (ExitCode::Left.code(), message)
            }
            Outcome::Stalled => {
                let message = self.stall.as_ref().map(Stall::message);
                let unknown = || verdict::completed(status(0).cloned());
                (ExitCode::Stalled.code(), message.unwrap_or_else(unknown))
            }
            Outcome::Failed(ended) => {
                let local_rank = ended.local_rank;
                let message = verdict::explain(
                    ended.end,
                    ranks::failure(&self.options.run_dir, local_rank),
                    status(local_rank),
                    // Processes live in one generation, and the lines of earlier ones are dropped.
                    self.processes.last_lines.of(local_rank, 0).as_deref(),
                    self.processes.has_memory(),
                );
                (ended.end.code(), message)
            }
        }
    }
}

/// The steps of a script cannot be measured from outside, so only a setting of the user applies.
fn limits(options: &Options) -> Limits {
    let mut limits = options.limits();
    if limits.policy == Policy::Auto {
        limits.policy = Policy::Off;
    }
    limits
}

/// Like torchrun: a process that shares a machine does not use all cores. A setting of
/// the user has priority.
fn one_thread(procs: u32) -> Option<(&'static str, String)> {
    const THREADS: &str = "OMP_NUM_THREADS";
    let is_shared = procs > 1 && std::env::var_os(THREADS).is_none();
    is_shared.then(|| (THREADS, "1".to_owned()))
}

fn words(end: End) -> String {
    match end {
        End::Exited(code) => format!("exited with code {code}"),
        End::Signaled(signal) => format!("was killed by signal {signal}"),
    }
}
