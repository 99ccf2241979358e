//! How the seconds between SIGTERM and SIGKILL of a pod are shared out. Pure.
//!
//! Kubernetes sends SIGTERM to the agent, and SIGKILL to everything `terminationGracePeriodSeconds` later. The
//! agent forwards SIGTERM at once and keeps the end of that time for itself: it kills what is left, reads the
//! last log lines and writes the termination message. A trainer process ends before the agent would kill it.
//!
//! ```text
//! SIGTERM          until_boundary          for_saving            agent kills   SIGKILL
//!    |---------------------|-------------------------|---- margin ----|-- last words --|
//! ```

use std::time::Duration;

use super::{EnvironmentInvalid, TERMINATION_GRACE_SECONDS, number};

/// Kubernetes' own default of `terminationGracePeriodSeconds`.
pub const DEFAULT_SECONDS: u64 = 30;
/// The agent never needs more than this for its last words.
const LONGEST_LAST_WORDS: Duration = Duration::from_secs(5);
/// A share of a sixth makes 5 s of the default of 30 s.
const LAST_WORDS_SHARE: u32 = 6;
/// A process needs no more than this to end after its save.
const LONGEST_MARGIN: Duration = Duration::from_secs(5);
/// A share of a fifth makes 5 s of the 25 s that the default leaves.
const MARGIN_SHARE: u32 = 5;

/// What a trainer process may spend after SIGTERM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaveBudget {
    /// Time after SIGTERM in which the common step boundary must come; a process that has not reached it by then
    /// leaves without it.
    pub until_boundary: Duration,
    /// Time that is kept for the save after the boundary. What is left of `until_boundary` when the boundary comes
    /// early may be used for saving, too: see [`Self::total`].
    pub for_saving: Duration,
}

impl LeaveBudget {
    /// Time after SIGTERM at which the process ends in any case.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.until_boundary + self.for_saving
    }
}

/// Time after SIGTERM at which the agent sends SIGKILL to processes that are still there: the pod's grace without
/// a sixth of it, at most 5 s.
#[must_use]
pub fn kill_after(grace: Duration) -> Duration {
    grace.saturating_sub((grace / LAST_WORDS_SHARE).min(LONGEST_LAST_WORDS))
}

/// The trainer's share of the pod's grace: [`kill_after`] without a margin of a fifth, at most 5 s, in two halves.
///
/// With the default of 30 s that is 10 s until the boundary and 10 s for saving; with 600 s, 295 s each.
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

/// Reads the pod's grace through `get` (`|name| std::env::var(name).ok()`); not set or empty: [`DEFAULT_SECONDS`].
///
/// # Errors
/// The variable is not a whole number of seconds.
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
    fn the_default_grace_leaves_ten_seconds_for_the_boundary_and_ten_for_saving() {
        let budget = leave_budget(seconds(DEFAULT_SECONDS));
        assert_eq!(kill_after(seconds(DEFAULT_SECONDS)), seconds(25));
        assert_eq!(budget.until_boundary, seconds(10));
        assert_eq!(budget.for_saving, seconds(10));
    }

    #[test]
    fn all_but_ten_seconds_of_a_longer_grace_go_to_the_trainer() {
        for grace in [60, 600, 86_400] {
            let budget = leave_budget(seconds(grace));
            assert_eq!(budget.total(), seconds(grace - 10));
            assert_eq!(budget.until_boundary, budget.for_saving);
        }
    }

    #[test]
    fn trainer_agent_and_kubelet_come_in_this_order_for_every_grace() {
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
    fn a_grace_reads_back_and_a_bad_one_is_named() {
        let read = |text: Option<&str>| read(|_| text.map(str::to_owned));
        assert_eq!(read(None), Ok(seconds(30)));
        assert_eq!(read(Some("")), Ok(seconds(30)));
        assert_eq!(read(Some("600")), Ok(seconds(600)));
        let error = read(Some("long")).unwrap_err();
        assert_eq!(error.variable, TERMINATION_GRACE_SECONDS);
    }
}
