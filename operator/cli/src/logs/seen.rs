//! Remembers the shown lines of a pod, so that a reopened log continues where it broke off. Pure.
//!
//! A log can only be requested from a time in whole seconds, so some lines arrive again. A line is
//! recognized by its time and text. Two equal lines with the same time are both shown.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use jiff::{SignedDuration, Timestamp};

/// How far before its newest line a log is read again. The times of standard output and standard
/// error differ by less.
const AGAIN: SignedDuration = SignedDuration::from_secs(10);
/// How long a line is remembered, by its own time: longer than [`AGAIN`] and the rounding to
/// seconds.
const KEPT: SignedDuration = SignedDuration::from_secs(15);

/// Time of a line, and hash of the raw line.
type LineId = (Timestamp, u64);

/// The newest lines that were shown.
#[derive(Debug, Default)]
pub(super) struct Seen {
    newest: Option<Timestamp>,
    shown: VecDeque<LineId>,
    /// Lines that the open log will repeat, with their number.
    pending: HashMap<LineId, usize>,
}

impl Seen {
    /// The time from which to reopen the log; `None` for its begin.
    pub(super) fn reopen(&mut self) -> Option<Timestamp> {
        self.pending.clear();
        for id in &self.shown {
            *self.pending.entry(*id).or_default() += 1;
        }
        self.newest.map(|newest| newest - AGAIN)
    }

    /// Whether the line is new; if so, it counts as shown from now on.
    pub(super) fn is_new(&mut self, at: Option<Timestamp>, raw: &str) -> bool {
        let Some(at) = at else { return true };
        let mut hasher = DefaultHasher::new();
        raw.hash(&mut hasher);
        let id = (at, hasher.finish());
        if let Some(left) = self.pending.get_mut(&id).filter(|left| **left > 0) {
            *left -= 1;
            return false;
        }
        let newest = self.newest.map_or(at, |newest| newest.max(at));
        self.newest = Some(newest);
        self.shown.push_back(id);
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
    fn repeated_line_is_shown_as_often_as_written() {
        let mut seen = Seen::default();
        assert_eq!(seen.reopen(), None);
        assert!(
            seen.is_new(Some(at(1_000)), "a")
                && seen.is_new(Some(at(1_000)), "a")
                && seen.is_new(Some(at(20_500)), "b")
        );
        assert_eq!(seen.reopen(), Some(at(10_500)));
        assert!(!seen.is_new(Some(at(20_500)), "b"));
        // A new line with an older time, as from standard error beside standard output.
        assert!(seen.is_new(Some(at(20_499)), "c") && seen.is_new(Some(at(20_500)), "b"));
    }

    #[test]
    fn old_lines_are_forgotten() {
        let mut seen = Seen::default();
        for second in 0..1_000 {
            assert!(seen.is_new(Some(at(second * 1_000)), "x"));
        }
        assert!(seen.shown.len() <= 16, "{}", seen.shown.len());
    }
}
