//! What wakes a job.

use crate::job::JobName;

/// What has changed of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// Something of its workers: a pod, a process, or a node.
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
    /// Something of its workers has changed.
    #[must_use]
    pub const fn by_workers(job: JobName) -> Self {
        let cause = Cause::Workers;
        Self { job, cause }
    }

    /// Something else has changed.
    #[must_use]
    pub const fn by_other(job: JobName) -> Self {
        let cause = Cause::Other;
        Self { job, cause }
    }
}
