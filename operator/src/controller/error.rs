//! Errors of a reconcile; the name of the variant is the label of the metric.

use std::time::Duration;

use roundhouse_planner::WriteBlocked;

use crate::runtime::api::error::{CallError, is_refusal};
use crate::runtime::panics::Panicked;

/// The status reports a call that takes longer.
const SLOW: Duration = Duration::from_secs(5);

/// A step of a reconcile that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The write of an action failed.
    #[error("apply {action}: {source}")]
    Apply {
        /// Name of the action.
        action: &'static str,
        /// Whether the action creates something: a pod, or what pods need.
        is_creation: bool,
        source: CallError,
    },
    /// The API server did not confirm what was observed.
    #[error("confirm: {0}")]
    Confirm(CallError),
    /// The caches are stale, and the API server has newer objects.
    #[error("the watch of {kind} is stale ({} s), and the API server has newer objects; no pod is deleted and no incident counted until it has caught up", .age.as_secs())]
    Stale {
        /// Kind of the stale watch.
        kind: &'static str,
        /// Time since the watch last received anything.
        age: Duration,
    },
    /// The write of the status failed.
    #[error("report: {0}")]
    Report(CallError),
    /// An object of ours cannot be written as JSON.
    #[error("build: {0}")]
    Build(#[from] serde_json::Error),
    /// The kernel returns no random bytes.
    #[error("no random bytes: {0}")]
    Random(#[from] std::io::Error),
    /// The code of the step panicked.
    #[error("a panic, which is a bug of Roundhouse: {0}")]
    Panicked(String),
}

impl From<Panicked> for Error {
    fn from(Panicked(words): Panicked) -> Self {
        Self::Panicked(words)
    }
}

impl Error {
    /// The message of the API server, if it refused an object of ours and would again.
    #[must_use]
    fn refusal(&self) -> Option<String> {
        match self {
            Self::Apply {
                source: CallError::Kube(kube::Error::Api(status)),
                ..
            } if is_refusal(status) => Some(status.message.clone()),
            Self::Apply { .. }
            | Self::Confirm(_)
            | Self::Report(_)
            | Self::Stale { .. }
            | Self::Build(_)
            | Self::Random(_)
            | Self::Panicked(_) => None,
        }
    }

    /// Why the API server has not done a write, if the status should say so: it refuses it, or
    /// takes long.
    #[must_use]
    pub fn write_blocked(&self) -> Option<WriteBlocked> {
        let Self::Apply { action, source, .. } = self else {
            return self.refusal().map(WriteBlocked::Refused);
        };
        match source {
            CallError::Undone(words) => return Some(WriteBlocked::Undone(words.clone())),
            CallError::Deadline(_) => {}
            CallError::Pending(elapsed) if *elapsed >= SLOW => {}
            CallError::Pending(_) | CallError::Kube(_) => {
                return self.refusal().map(WriteBlocked::Refused);
            }
        }
        let words = format!(
            "{action} takes longer than {} s; an admission webhook may be slow",
            SLOW.as_secs()
        );
        Some(WriteBlocked::NoAnswer(words))
    }

    /// How long a call without an answer has continued.
    #[must_use]
    pub const fn elapsed(&self) -> Option<Duration> {
        match self {
            Self::Apply {
                source: CallError::Pending(elapsed),
                ..
            }
            | Self::Report(CallError::Pending(elapsed)) => Some(*elapsed),
            _ => None,
        }
    }

    /// Whether a call continues, and wakes the job when it ends.
    #[must_use]
    pub const fn is_pending(&self) -> bool {
        self.elapsed().is_some()
    }

    /// Whether only a creation failed: all other decisions hold.
    #[must_use]
    pub const fn is_creation(&self) -> bool {
        matches!(
            self,
            Self::Apply {
                is_creation: true,
                ..
            }
        )
    }

    /// The pause that the API server asked for, if it did.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Apply { source, .. } | Self::Confirm(source) | Self::Report(source) => {
                source.retry_after()
            }
            Self::Stale { .. } | Self::Build(_) | Self::Random(_) | Self::Panicked(_) => None,
        }
    }

    /// Label of the error in the metrics.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Apply { .. } => "Apply",
            Self::Confirm(_) => "Confirm",
            Self::Stale { .. } => "Stale",
            Self::Report(_) => "Report",
            Self::Build(_) => "Build",
            Self::Random(_) => "Random",
            Self::Panicked(_) => "Panicked",
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn slow_write_blocks_once_it_takes_5_seconds() {
        let write_blocked = |is_creation, source| {
            let action = "CreateWorker";
            let error = Error::Apply {
                action,
                is_creation,
                source,
            };
            error.write_blocked().is_some()
        };
        let seconds = Duration::from_secs;
        assert!(!write_blocked(true, CallError::Pending(seconds(1))));
        assert!(write_blocked(true, CallError::Pending(seconds(6))));
        assert!(write_blocked(true, CallError::Deadline(seconds(35))));
        assert!(write_blocked(false, CallError::Deadline(seconds(5))));
        assert!(write_blocked(false, CallError::Pending(seconds(6))));
    }

    #[test]
    fn webhook_failures_are_refusals_and_transient_errors_are_not() {
        let webhook = r#"Internal error occurred: failed calling webhook "a.b": no endpoints"#;
        let cases = [
            (400, "bad", true),
            (403, "exceeded quota", true),
            (408, "too slow", false),
            (422, "invalid", true),
            (429, "too many requests", false),
            (500, "etcdserver: leader changed", false),
            (500, webhook, true),
            (503, "unavailable", false),
        ];
        for (code, words, expected) in cases {
            let status = Status::failure(words, "Reason").with_code(code);
            let error = Error::Apply {
                action: "CreateWorker",
                is_creation: true,
                source: CallError::Kube(kube::Error::Api(status.boxed())),
            };
            assert_eq!(error.refusal().is_some(), expected, "{code} {words}");
        }
    }
}
