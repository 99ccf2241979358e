//! Why the operator does not accept a job. It creates no new pods for such a job, and the existing
//! ones continue.

use roundhouse_api::lenient::Unreadable;
use roundhouse_api::{ConditionReason, EventReason};

use crate::invalid::InvalidSpec;

/// Why a job is not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// The cause, for conditions and events.
    pub reason: RejectionReason,
    /// One sentence with the field and what to change.
    pub message: String,
}

/// Causes for which the operator does not accept a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectionReason {
    /// The spec cannot run, or a part of it cannot be read.
    InvalidSpec,
    /// The administrator's policy does not allow what it asks for.
    ForbiddenByPolicy,
    /// The namespace has as many jobs as the administrator's policy allows.
    TooManyJobs,
    /// A newer operator wrote its workers' memberships, in a protocol that this
    /// version does not know.
    NewerProtocol,
}

impl RejectionReason {
    /// The matching reason of a condition.
    #[must_use]
    pub const fn condition(self) -> ConditionReason {
        match self {
            Self::InvalidSpec => ConditionReason::InvalidSpec,
            Self::ForbiddenByPolicy => ConditionReason::ForbiddenByPolicy,
            Self::TooManyJobs => ConditionReason::TooManyJobs,
            Self::NewerProtocol => ConditionReason::NewerProtocol,
        }
    }

    /// The matching reason of an Event.
    #[must_use]
    pub const fn event(self) -> EventReason {
        match self {
            Self::InvalidSpec => EventReason::InvalidSpec,
            Self::ForbiddenByPolicy => EventReason::ForbiddenByPolicy,
            Self::TooManyJobs => EventReason::TooManyJobs,
            Self::NewerProtocol => EventReason::NewerProtocol,
        }
    }
}

impl From<InvalidSpec> for Rejection {
    fn from(invalid: InvalidSpec) -> Self {
        Self {
            reason: RejectionReason::InvalidSpec,
            message: invalid.to_string(),
        }
    }
}

impl From<&Unreadable> for Rejection {
    fn from(Unreadable { field, message }: &Unreadable) -> Self {
        Self {
            reason: RejectionReason::InvalidSpec,
            message: format!("{field}: {message}"),
        }
    }
}
