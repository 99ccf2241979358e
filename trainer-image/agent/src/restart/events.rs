//! Events and actions of a worker in restart mode.

use std::time::Duration;

use roundhouse_contract::Membership;

use crate::verdict::{End, Ended};

/// Timeouts of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Time between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// Time in which a failure may turn out to be that of a peer.
    pub peer_failure_window: Duration,
    /// Time between SIGTERM and SIGKILL of processes that hang.
    pub stalled: Duration,
}

/// Events of a worker.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The membership file has a new document.
    MembershipChanged(Membership),
    /// A process has ended.
    Ended(u32, End),
    /// SIGTERM, SIGINT or the operator asks the worker to leave.
    LeaveRequested,
    /// The watchdog found a process that hangs.
    Stalled,
    /// A deadline of the machine may have passed.
    Tick,
}

/// Actions of the agent, in this order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Start all processes for this place.
    Start(Membership),
    /// Send SIGTERM to all running processes.
    Terminate,
    /// Send SIGKILL to all running processes.
    Kill,
    /// End the worker with this outcome.
    Exit(Outcome),
}

/// The end of the worker.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// All processes completed with exit code 0.
    Completed,
    /// The worker left on request.
    Left,
    /// The worker failed with this process.
    Failed(Ended),
    /// A process hung and was ended.
    Stalled,
}
