//! Which lines of a pod have been shown, so that a log that is opened again continues where it broke off. Pure.
//!
//! A log can only be asked for from a moment on, in whole seconds, so lines come again. They are told by time and
//! text. Lines of one time and text that were written twice are shown twice.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use jiff::{SignedDuration, Timestamp};

/// How far back a log is read again. Clocks of standard output and standard error differ by less.
const AGAIN: SignedDuration = SignedDuration::from_secs(10);
/// How long lines are remembered, by their own time. More than is read again, with the rounding of its begin.
const KEPT: SignedDuration = SignedDuration::from_secs(15);

/// Time of a line and hash of all of it.
type Mark = (Timestamp, u64);

/// The newest lines that were shown.
#[derive(Debug, Default)]
pub(super) struct Seen {
    newest: Option<Timestamp>,
    shown: VecDeque<Mark>,
    /// Lines that will come again in the log that is being read.
    pending: HashMap<Mark, usize>,
}

impl Seen {
    /// A log is opened again: from when on it is to be read. `None`: from its begin.
    pub(super) fn reopen(&mut self) -> Option<Timestamp> {
        self.pending.clear();
        for mark in &self.shown {
            *self.pending.entry(*mark).or_default() += 1;
        }
        self.newest.map(|newest| newest - AGAIN)
    }

    /// Whether a line has not been shown yet. Then it counts as shown.
    pub(super) fn is_new(&mut self, at: Option<Timestamp>, raw: &str) -> bool {
        let Some(at) = at else { return true };
        let mut hasher = DefaultHasher::new();
        raw.hash(&mut hasher);
        let mark = (at, hasher.finish());
        if let Some(left) = self.pending.get_mut(&mark).filter(|left| **left > 0) {
            *left -= 1;
            return false;
        }
        let newest = self.newest.map_or(at, |newest| newest.max(at));
        self.newest = Some(newest);
        self.shown.push_back(mark);
        while self
            .shown
            .front()
            .is_some_and(|(at, _)| newest.duration_since(*at) > KEPT)
        {
            self.shown.pop_front();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(millis).unwrap()
    }

    #[test]
    fn lines_that_come_again_are_shown_once_and_those_written_twice_twice() {
        let mut seen = Seen::default();
        assert_eq!(seen.reopen(), None);
        assert!(
            seen.is_new(Some(at(1_000)), "a")
                && seen.is_new(Some(at(1_000)), "a")
                && seen.is_new(Some(at(20_500)), "b")
        );
        assert_eq!(seen.reopen(), Some(at(10_500)));
        assert!(!seen.is_new(Some(at(20_500)), "b"));
        // Written later with an older time: standard error beside standard output.
        assert!(seen.is_new(Some(at(20_499)), "c") && seen.is_new(Some(at(20_500)), "b"));
    }

    #[test]
    fn lines_are_forgotten_once_they_cannot_come_again() {
        let mut seen = Seen::default();
        for second in 0..1_000 {
            assert!(seen.is_new(Some(at(second * 1_000)), "x"));
        }
        assert!(seen.shown.len() <= 16, "{}", seen.shown.len());
    }
}
