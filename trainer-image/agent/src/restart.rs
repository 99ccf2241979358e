//! Restart mode: what the agent does with processes that know nothing of generations. Pure: what
//! happens goes in, what is to be done comes out; the time is told, never asked.
//!
//! A new generation ends the processes and starts them anew. A process that ends by an ordinary error
//! may only have lost a peer, so the agent waits for a newer generation before it gives up; one that a
//! signal killed has itself to blame. SIGABRT is an ordinary error: c10d aborts a process so when NCCL
//! loses a peer.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use roundhouse_contract::membership::Action as Instruction;
use roundhouse_contract::{ExitCode, Membership};

use crate::verdict::{CAUSE_WINDOW, End, Ended, cause};

pub mod events;

pub use events::{Action, Event, Outcome, Patience};

/// Signal of `abort(3)`.
const SIGABRT: i32 = 6;

/// The worker between its start and its end.
#[derive(Debug)]
pub struct Machine {
    procs: u32,
    patience: Patience,
    /// Newest generation accepted, or found at the start.
    seen: u64,
    running: BTreeSet<u32>,
    /// Processes of this generation that have ended, in order.
    ended: Vec<Ended>,
    state: State,
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    /// No process runs: the first generation, or the next, is waited for.
    Waiting,
    /// Processes run.
    Running,
    /// A process failed; the others may tell why.
    Failing { until: Instant },
    /// Processes are being ended.
    Ending { kill_at: Instant, next: Next },
    /// None runs; the failure may turn out to be that of a peer.
    Doubting { until: Instant, failure: Ended },
    /// It is over.
    Over,
}

/// What follows when all processes have ended.
#[derive(Clone, Debug, PartialEq)]
enum Next {
    Start(Membership),
    Exit(Outcome),
    /// Wait for a newer generation until then.
    Doubt(Instant, Ended),
}

impl Machine {
    /// In the lobby. `found` is the generation that the membership file held before.
    #[must_use]
    pub const fn new(procs: u32, found: u64, patience: Patience) -> Self {
        Self {
            procs,
            patience,
            seen: found,
            running: BTreeSet::new(),
            ended: Vec::new(),
            state: State::Waiting,
        }
    }

    /// When [`Event::Tick`] is due at the latest.
    #[must_use]
    pub const fn wake_at(&self) -> Option<Instant> {
        match &self.state {
            State::Failing { until } | State::Doubting { until, .. } => Some(*until),
            State::Ending { kill_at, .. } => Some(*kill_at),
            State::Waiting | State::Running | State::Over => None,
        }
    }

    /// Whether processes run that nobody has asked to end.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.state == State::Running
    }

    /// Takes in what happened.
    pub fn apply(&mut self, event: Event, now: Instant) -> Vec<Action> {
        match event {
            Event::Told(membership) => self.told(membership, now),
            Event::Ended(local_rank, end) => self.process_ended(local_rank, end, now),
            Event::LeaveRequested => self.leave(now),
            Event::Stalled if self.state == State::Running => {
                self.end_all(now, self.patience.stalled, Next::Exit(Outcome::Stalled))
            }
            Event::Stalled => Vec::new(),
            Event::Tick => self.tick(now),
        }
    }

    fn told(&mut self, membership: Membership, now: Instant) -> Vec<Action> {
        let is_place = membership.action == Instruction::Leave
            || (membership.procs_per_worker == self.procs
                && membership.node_rank < membership.nodes);
        if membership.generation <= self.seen || !is_place || self.is_ending_for_good() {
            return Vec::new();
        }
        self.seen = membership.generation;
        match membership.action {
            Instruction::Leave => self.leave(now),
            Instruction::Join => self.end_all(now, self.patience.grace, Next::Start(membership)),
        }
    }

    fn leave(&mut self, now: Instant) -> Vec<Action> {
        if self.is_ending_for_good() {
            return Vec::new();
        }
        self.end_all(now, self.patience.grace, Next::Exit(Outcome::Left))
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

    /// Ends all processes, and continues from there; at once if there are none. Who is being ended
    /// already keeps the earlier deadline.
    fn end_all(&mut self, now: Instant, grace: Duration, next: Next) -> Vec<Action> {
        if self.running.is_empty() {
            return self.go_on(next);
        }
        let (kill_at, actions) = match self.state {
            State::Ending { kill_at, .. } => (kill_at.min(now + grace), Vec::new()),
            _ => (now + grace, vec![Action::Terminate]),
        };
        self.state = State::Ending { kill_at, next };
        actions
    }

    fn go_on(&mut self, next: Next) -> Vec<Action> {
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
            actions.extend(self.go_on(Next::Exit(Outcome::Failed(ended))));
            return actions;
        }
        match self.state.clone() {
            State::Running if !self.ended.iter().all(Ended::is_fine) => {
                let until = now + CAUSE_WINDOW.min(self.patience.peer_failure_window);
                self.state = State::Failing { until };
                self.doubt_if_alone(now)
            }
            State::Running if self.running.is_empty() => self.go_on(Next::Exit(Outcome::Completed)),
            State::Failing { .. } => self.doubt_if_alone(now),
            State::Ending { next, .. } if self.running.is_empty() => self.go_on(next),
            State::Running
            | State::Ending { .. }
            | State::Waiting
            | State::Doubting { .. }
            | State::Over => Vec::new(),
        }
    }

    /// Nobody is left who could tell why.
    fn doubt_if_alone(&mut self, now: Instant) -> Vec<Action> {
        if self.running.is_empty() {
            return self.doubt(now);
        }
        Vec::new()
    }

    /// Ends the others, then waits whether it was a peer.
    fn doubt(&mut self, now: Instant) -> Vec<Action> {
        let Some(failure) = cause(&self.ended).cloned() else {
            return Vec::new();
        };
        let until = now + self.patience.peer_failure_window;
        // Without their sibling they cannot train; nothing is lost that a checkpoint does not hold.
        let grace = CAUSE_WINDOW.min(self.patience.grace);
        self.end_all(now, grace, Next::Doubt(until, failure))
    }

    fn tick(&mut self, now: Instant) -> Vec<Action> {
        match self.state.clone() {
            State::Failing { until } if now >= until => self.doubt(now),
            State::Ending { kill_at, next } if now >= kill_at => {
                let kill_at = now + self.patience.grace;
                self.state = State::Ending { kill_at, next };
                vec![Action::Kill]
            }
            State::Doubting { until, failure } if now >= until => {
                self.go_on(Next::Exit(Outcome::Failed(failure)))
            }
            _ => Vec::new(),
        }
    }
}

/// Whether no peer can be the cause: killed by somebody or for want of memory, or an exit code that
/// says so.
fn is_own_fault(end: End) -> bool {
    match end {
        End::Signaled(signal) => signal != SIGABRT,
        End::Exited(code) => ExitCode::from_code(code)
            .is_some_and(|code| code.is_permanent() || code == ExitCode::HardwareFault),
    }
}

#[cfg(test)]
mod tests;
