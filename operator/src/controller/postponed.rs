//! Why the reconcile of a job ends before there is a plan.

use std::io;
use std::time::Duration;

use crate::controller::error::Error;
use crate::runtime::panics::Panicked;
use crate::watch::staleness::Stale;

/// Something is not known yet without which a plan would be wrong. What makes it known wakes the
/// job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Postponed {
    /// The caches are too old to act on.
    Stale(Stale),
    /// The API server has not answered yet whether it serves the PodGroups of the job's gang
    /// scheduler.
    PodGroupsUnknown,
    /// The labels of the job's namespace are not known, and its limits depend on them.
    NamespaceUnknown,
    /// The labels of nodes that the job's ranks follow are being read.
    NodeLabelsUnknown,
}

/// How long a postponed job waits at most.
const PATIENCE: Duration = Duration::from_secs(5);
/// Until labels of nodes are read, for which a call has its deadline.
const LABELS: Duration = Duration::from_millis(100);

impl Postponed {
    /// When to reconcile the job again, unless something wakes it.
    pub(super) const fn after(self) -> Duration {
        match self {
            Self::Stale(Stale::OwnWrite(left)) => left,
            Self::NodeLabelsUnknown => LABELS,
            Self::Stale(Stale::MissingPod | Stale::Watch { .. } | Stale::DeletedJob)
            | Self::PodGroupsUnknown
            | Self::NamespaceUnknown => PATIENCE,
        }
    }

    /// Label of the metric. A job that is postponed shows nothing else, unless it is postponed for
    /// a moment only.
    pub(super) const fn label(self) -> Option<&'static str> {
        match self {
            Self::Stale(Stale::OwnWrite(_)) | Self::NodeLabelsUnknown => None,
            Self::Stale(Stale::MissingPod | Stale::Watch { .. }) => Some("WatchLate"),
            Self::Stale(Stale::DeletedJob) => Some("JobGone"),
            Self::PodGroupsUnknown => Some("PodGroupsUnknown"),
            Self::NamespaceUnknown => Some("NamespaceUnknown"),
        }
    }
}

/// Why a reconcile did not carry out a plan.
#[derive(Debug)]
pub(super) enum Stop {
    /// Another controller manages the job.
    OtherManager,
    Postponed(Postponed),
    Failed(Error),
}

impl From<Postponed> for Stop {
    fn from(why: Postponed) -> Self {
        Self::Postponed(why)
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Panicked> for Stop {
    fn from(panicked: Panicked) -> Self {
        Self::Failed(panicked.into())
    }
}

impl From<serde_json::Error> for Stop {
    fn from(error: serde_json::Error) -> Self {
        Self::Failed(error.into())
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Failed(error.into())
    }
}
