//! Divides the time between SIGTERM and SIGKILL of a pod. Pure.
//!
//! Kubernetes sends SIGTERM to the agent, and SIGKILL to all processes
//! `terminationGracePeriodSeconds` later. The agent forwards SIGTERM at once and reserves the end
//! of that time for itself: it kills the remaining processes, reads the last log lines and writes
//! the termination message. A trainer process ends before the agent would kill it.
//!
//! ```text
//! SIGTERM          until_boundary          for_saving            agent kills   SIGKILL
//!    |---------------------|-------------------------|---- margin ----|-- last words --|
//! ```

use std::time::Duration;

use super::{EnvironmentInvalid, TERMINATION_GRACE_SECONDS, number};

/// Default of `terminationGracePeriodSeconds` in Kubernetes.
pub const DEFAULT_SECONDS: u64 = 30;
/// The most time that the agent needs for its termination message.
const LONGEST_LAST_WORDS: Duration = Duration::from_secs(5);
/// The agent's share is one sixth: 5 s of the default of 30 s.
const LAST_WORDS_SHARE: u32 = 6;
/// The most time that a process needs to end after its save.
const LONGEST_MARGIN: Duration = Duration::from_secs(5);
/// The margin is one fifth: 5 s of the 25 s that remain with the default.
const MARGIN_SHARE: u32 = 5;

/// The time that a trainer process has after SIGTERM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaveBudget {
    /// Time after SIGTERM in which the common step boundary must come. A process that has not
    /// reached it by then leaves without it.
    pub until_boundary: Duration,
    /// Time that is reserved for the save after the boundary. If the boundary comes early, the rest
    /// of `until_boundary` may also be used for saving: see [`Self::total`].
    pub for_saving: Duration,
}

impl LeaveBudget {
    /// Time after SIGTERM at which the process always ends.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.until_boundary + self.for_saving
    }
}

/// Time after SIGTERM at which the agent sends SIGKILL to the remaining processes: the pod's grace
/// without a sixth of it, at most 5 s.
#[must_use]
pub fn kill_after(grace: Duration) -> Duration {
    grace.saturating_sub((grace / LAST_WORDS_SHARE).min(LONGEST_LAST_WORDS))
}

/// The trainer's part of the pod's grace: [`kill_after`] without a margin of a fifth, at most 5
/// s, in two halves.
///
/// With the default of 30 s that is 10 s until the boundary and 10 s for the save; with 600
/// s, 295 s each.
#[must_use]
pub fn leave_budget(grace: Duration) -> LeaveBudget {
    let killed_at = kill_after(grace);
    let total = killed_at.saturating_sub((killed_at / MARGIN_SHARE).min(LONGEST_MARGIN));
    let until_boundary = total / 2;
    LeaveBudget {
        until_boundary,
        for_saving: total.saturating_sub(until_boundary),
    }
}

/// Reads the pod's grace through `get` (`|name| std::env::var(name).ok()`). If it is not set or
/// empty, it is [`DEFAULT_SECONDS`].
///
/// # Errors
/// Fails if the variable is not a whole number of seconds.
pub fn read(get: impl Fn(&str) -> Option<String>) -> Result<Duration, EnvironmentInvalid> {
    match get(TERMINATION_GRACE_SECONDS).filter(|text| !text.is_empty()) {
        None => Ok(Duration::from_secs(DEFAULT_SECONDS)),
        Some(text) => number(TERMINATION_GRACE_SECONDS, text).map(Duration::from_secs),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn default_grace_has_ten_seconds_each_for_boundary_and_save() {
        let budget = leave_budget(seconds(DEFAULT_SECONDS));
        assert_eq!(kill_after(seconds(DEFAULT_SECONDS)), seconds(25));
        assert_eq!(budget.until_boundary, seconds(10));
        assert_eq!(budget.for_saving, seconds(10));
    }

    #[test]
    fn trainer_gets_all_but_ten_seconds_of_a_long_grace() {
        for grace in [60, 600, 86_400] {
            let budget = leave_budget(seconds(grace));
            assert_eq!(budget.total(), seconds(grace - 10));
            assert_eq!(budget.until_boundary, budget.for_saving);
        }
    }

    #[test]
    fn trainer_ends_before_agent_and_agent_before_kubelet() {
        for grace in (0..5_000).map(Duration::from_millis) {
            let (budget, killed_at) = (leave_budget(grace), kill_after(grace));
            assert!(
                budget.total() <= killed_at && killed_at <= grace,
                "{grace:?}"
            );
            assert!(
                grace.is_zero() || budget.total() * 2 > grace,
                "{grace:?}: the trainer has at least half of it"
            );
        }
    }

    #[test]
    fn grace_is_read_and_invalid_value_is_named() {
        let read = |text: Option<&str>| read(|_| text.map(str::to_owned));
        assert_eq!(read(None), Ok(seconds(30)));
        assert_eq!(read(Some("")), Ok(seconds(30)));
        assert_eq!(read(Some("600")), Ok(seconds(600)));
        let error = read(Some("long")).unwrap_err();
        assert_eq!(error.variable, TERMINATION_GRACE_SECONDS);
    }
}
