//! What happens to a worker in restart mode, and what is to be done about it.

use std::time::Duration;

use roundhouse_contract::Membership;

use crate::verdict::{End, Ended};

/// How long things may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// For which a failure may turn out to be that of a peer.
    pub peer_failure_window: Duration,
    /// Between SIGTERM and SIGKILL of processes that hang.
    pub stalled: Duration,
}

/// What happens.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The membership file has changed.
    Told(Membership),
    /// A process has ended.
    Ended(u32, End),
    /// Somebody wants the worker to leave.
    LeaveRequested,
    /// The watchdog has judged a process.
    Stalled,
    /// Time has passed.
    Tick,
}

/// What is to be done, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Start all processes for this place.
    Start(Membership),
    /// SIGTERM to all that run.
    Terminate,
    /// SIGKILL to all that run.
    Kill,
    /// End the worker.
    Exit(Outcome),
}

/// How the worker ends.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// All processes completed.
    Completed,
    /// On request.
    Left,
    /// As this process did.
    Failed(Ended),
    /// A process hung.
    Stalled,
}
