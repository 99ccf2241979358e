//! Wakes: requests to reconcile a job, with their causes.

use crate::job::JobName;

/// What changed about a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// A pod, a process or a node of its workers.
    Workers,
    /// Anything else: its spec or status, a change of an object that the job owns, its progress,
    /// the time.
    Other,
}

/// A job is to be reconciled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wake {
    pub job: JobName,
    pub cause: Cause,
}

impl Wake {
    /// A wake because its workers changed.
    #[must_use]
    pub const fn by_workers(job: JobName) -> Self {
        let cause = Cause::Workers;
        Self { job, cause }
    }

    /// A wake for another cause.
    #[must_use]
    pub const fn by_other(job: JobName) -> Self {
        let cause = Cause::Other;
        Self { job, cause }
    }
}
