//! The outcome of the writes of a plan.

use crate::controller::error::Error;

/// The outcome of some writes.
#[derive(Default)]
pub(super) struct Outcome {
    looks_again: bool,
    failed: Option<Error>,
    /// The write that has continued for the longest time, and the number of writes that continue.
    pending: Option<Error>,
    num_pending: usize,
}

impl Outcome {
    pub(super) fn of(result: Result<(), Error>) -> Self {
        let mut outcome = Self::default();
        match result {
            Ok(()) => {}
            Err(Error::Apply { source, action, .. }) if source.is_conflict() => {
                tracing::debug!(action, %source, "look again");
                outcome.looks_again = true;
            }
            Err(error) if error.is_pending() => {
                outcome.num_pending = 1;
                outcome.pending = Some(error);
            }
            Err(error) => outcome.failed = Some(error),
        }
        outcome
    }

    pub(super) fn and(self, next: Self) -> Self {
        let longer = |one: &Error, other: &Error| one.elapsed() >= other.elapsed();
        let pending = match (self.pending, next.pending) {
            (Some(one), Some(other)) => Some(if longer(&one, &other) { one } else { other }),
            (one, other) => one.or(other),
        };
        Self {
            looks_again: self.looks_again || next.looks_again,
            failed: self.failed.or(next.failed),
            pending,
            num_pending: self.num_pending + next.num_pending,
        }
    }

    pub(super) const fn is_refused(&self) -> bool {
        self.failed.is_some()
    }

    pub(super) const fn num_pending(&self) -> usize {
        self.num_pending
    }

    pub(super) const fn is_all(&self) -> bool {
        !self.looks_again && self.failed.is_none() && self.pending.is_none()
    }

    pub(super) fn result(self) -> Result<bool, Error> {
        let error = self.failed.or(self.pending);
        error.map_or(Ok(!self.looks_again), Err)
    }
}
