//! Restart mode: how the agent manages processes that do not know generations. This module is pure:
//! events go in, actions come out, and the caller passes the time.
//!
//! For a new generation the agent ends the processes and starts them again. A process that ends by
//! an ordinary error may have lost a peer, so the agent waits for a newer generation before it
//! gives up. A process that a signal killed failed by itself. SIGABRT counts as an ordinary error,
//! because c10d aborts a process when NCCL loses a peer.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use roundhouse_contract::membership::Action as Instruction;
use roundhouse_contract::{ExitCode, Membership};

use crate::verdict::{CAUSE_WINDOW, End, Ended, cause};

pub mod events;

pub use events::{Action, Event, Outcome, Timeouts};

const SIGABRT: i32 = 6;

/// State machine of the worker from its start to its end.
#[derive(Debug)]
pub struct Machine {
    procs: u32,
    timeouts: Timeouts,
    /// Newest generation accepted, or found at the start.
    seen: u64,
    running: BTreeSet<u32>,
    /// Processes of this generation that have ended, in order.
    ended: Vec<Ended>,
    state: State,
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    /// No process runs. The worker waits for its first or next generation.
    Waiting,
    /// All processes run and none has failed.
    Running,
    /// A process failed. The others may still report the cause.
    Failing { until: Instant },
    /// The processes were asked to end.
    Ending { kill_at: Instant, next: Next },
    /// No process runs. The failure may turn out to be that of a peer.
    Doubting { until: Instant, failure: Ended },
    /// The worker has ended.
    Over,
}

/// The next action after all processes have ended.
#[derive(Clone, Debug, PartialEq)]
enum Next {
    Start(Membership),
    Exit(Outcome),
    /// Wait for a newer generation until this time.
    Doubt(Instant, Ended),
}

impl Machine {
    /// Creates a worker in the lobby. `found` is the generation that was in
    /// the membership file before.
    #[must_use]
    pub const fn new(procs: u32, found: u64, timeouts: Timeouts) -> Self {
        Self {
            procs,
            timeouts,
            seen: found,
            running: BTreeSet::new(),
            ended: Vec::new(),
            state: State::Waiting,
        }
    }

    /// Latest time at which [`Event::Tick`] is due.
    #[must_use]
    pub const fn wake_at(&self) -> Option<Instant> {
        match &self.state {
            State::Failing { until } | State::Doubting { until, .. } => Some(*until),
            State::Ending { kill_at, .. } => Some(*kill_at),
            State::Waiting | State::Running | State::Over => None,
        }
    }

    /// Whether processes run and were not asked to end.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.state == State::Running
    }

    /// Takes in an event and returns the actions.
    pub fn apply(&mut self, event: Event, now: Instant) -> Vec<Action> {
        match event {
            Event::MembershipChanged(membership) => self.accept(membership, now),
            Event::Ended(local_rank, end) => self.process_ended(local_rank, end, now),
            Event::LeaveRequested => self.leave(now),
            Event::Stalled if self.state == State::Running => {
                self.end_all(now, self.timeouts.stalled, Next::Exit(Outcome::Stalled))
            }
            Event::Stalled => Vec::new(),
            Event::Tick => self.tick(now),
        }
    }

    fn accept(&mut self, membership: Membership, now: Instant) -> Vec<Action> {
        let is_place = membership.action == Instruction::Leave
            || (membership.procs_per_worker == self.procs
                && membership.node_rank < membership.nodes);
        if membership.generation <= self.seen || !is_place || self.is_ending_for_good() {
            return Vec::new();
        }
        self.seen = membership.generation;
        match membership.action {
            Instruction::Leave => self.leave(now),
            Instruction::Join => self.end_all(now, self.timeouts.grace, Next::Start(membership)),
        }
    }

    fn leave(&mut self, now: Instant) -> Vec<Action> {
        if self.is_ending_for_good() {
            return Vec::new();
        }
        self.end_all(now, self.timeouts.grace, Next::Exit(Outcome::Left))
    }

    fn is_ending_for_good(&self) -> bool {
        matches!(
            self.state,
            State::Over
                | State::Ending {
                    next: Next::Exit(_),
                    ..
                }
        )
    }

    /// Ends all processes, then performs `next`; at once if no process runs. Processes that are
    /// being ended already keep the earlier deadline.
    fn end_all(&mut self, now: Instant, grace: Duration, next: Next) -> Vec<Action> {
        if self.running.is_empty() {
            return self.proceed(next);
        }
        let (kill_at, actions) = match self.state {
            State::Ending { kill_at, .. } => (kill_at.min(now + grace), Vec::new()),
            _ => (now + grace, vec![Action::Terminate]),
        };
        self.state = State::Ending { kill_at, next };
        actions
    }

    fn proceed(&mut self, next: Next) -> Vec<Action> {
        match next {
            Next::Start(membership) => {
                self.ended.clear();
                self.running = (0..self.procs).collect();
                self.state = State::Running;
                vec![Action::Start(membership)]
            }
            Next::Doubt(until, failure) => {
                self.state = State::Doubting { until, failure };
                Vec::new()
            }
            Next::Exit(outcome) => {
                self.state = State::Over;
                vec![Action::Exit(outcome)]
            }
        }
    }

    fn process_ended(&mut self, local_rank: u32, end: End, now: Instant) -> Vec<Action> {
        self.running.remove(&local_rank);
        let ended = Ended {
            local_rank,
            end,
            on_request: matches!(self.state, State::Ending { .. }),
        };
        let is_own_fault = is_own_fault(end) && !ended.on_request;
        self.ended.push(ended.clone());
        if is_own_fault {
            let mut actions = vec![Action::Kill];
            actions.extend(self.proceed(Next::Exit(Outcome::Failed(ended))));
            return actions;
        }
        match self.state.clone() {
            State::Running if !self.ended.iter().all(Ended::is_fine) => {
                let until = now + CAUSE_WINDOW.min(self.timeouts.peer_failure_window);
                self.state = State::Failing { until };
                self.doubt_if_alone(now)
            }
            State::Running if self.running.is_empty() => {
                self.proceed(Next::Exit(Outcome::Completed))
            }
            State::Failing { .. } => self.doubt_if_alone(now),
            State::Ending { next, .. } if self.running.is_empty() => self.proceed(next),
            State::Running
            | State::Ending { .. }
            | State::Waiting
            | State::Doubting { .. }
            | State::Over => Vec::new(),
        }
    }

    /// Starts the doubt once no process is left that could report the cause.
    fn doubt_if_alone(&mut self, now: Instant) -> Vec<Action> {
        if self.running.is_empty() {
            return self.doubt(now);
        }
        Vec::new()
    }

    /// Ends the other processes, then waits whether a newer generation shows that a peer failed.
    fn doubt(&mut self, now: Instant) -> Vec<Action> {
        let Some(failure) = cause(&self.ended).cloned() else {
            return Vec::new();
        };
        let until = now + self.timeouts.peer_failure_window;
        // Without this process the others cannot train. A checkpoint holds all that is needed.
        let grace = CAUSE_WINDOW.min(self.timeouts.grace);
        self.end_all(now, grace, Next::Doubt(until, failure))
    }

    fn tick(&mut self, now: Instant) -> Vec<Action> {
        match self.state.clone() {
            State::Failing { until } if now >= until => self.doubt(now),
            State::Ending { kill_at, next } if now >= kill_at => {
                let kill_at = now + self.timeouts.grace;
                self.state = State::Ending { kill_at, next };
                vec![Action::Kill]
            }
            State::Doubting { until, failure } if now >= until => {
                self.proceed(Next::Exit(Outcome::Failed(failure)))
            }
            _ => Vec::new(),
        }
    }
}

/// Whether no peer can be the cause: a signal other than SIGABRT killed the process, for example
/// for lack of memory, or the exit code excludes it.
fn is_own_fault(end: End) -> bool {
    match end {
        End::Signaled(signal) => signal != SIGABRT,
        End::Exited(code) => ExitCode::from_code(code)
            .is_some_and(|code| code.is_permanent() || code == ExitCode::HardwareFault),
    }
}

#[cfg(test)]
mod tests;
