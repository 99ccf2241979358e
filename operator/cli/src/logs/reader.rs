//! Decides which log of a pod to open next. Pure.

use jiff::Timestamp;

use super::seen::Seen;
use super::{Part, Target};

/// The reading position in the logs of one pod.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// The container that was read last, as its number of restarts.
    container: Option<u32>,
    /// Whether that container was read to its end.
    is_complete: bool,
    /// The log that is open now.
    open: Option<Open>,
    pub(super) seen: Seen,
}

/// A log to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Open {
    /// The container, as its number of restarts.
    container: u32,
    /// Whether the container had ended when the log was opened, so that the end of the stream is
    /// the end of the log.
    has_ended: bool,
    pub(super) part: Part,
    /// Number of containers before it whose logs Kubernetes no longer has.
    pub(super) num_lost: u32,
}

/// Where to begin in logs that are opened for the first time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Begin {
    /// Only lines from this time on.
    pub(crate) since: Option<Timestamp>,
    /// Only this many last lines.
    pub(crate) tail: Option<i64>,
}

impl Reader {
    pub(super) const fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// The log to open now, if any. `begin` applies to pods that existed when following began;
    /// later pods are read from the start.
    pub(super) fn next(&mut self, target: &Target, begin: Option<Begin>) -> Option<Open> {
        if self.is_open() || !target.has_started {
            return None;
        }
        let (container, previous, num_lost) = match self.container {
            None if begin.is_some() || target.restarts == 0 => (target.restarts, false, 0),
            None => (target.restarts - 1, true, target.restarts - 1),
            Some(last)
                if last < target.restarts && (self.is_complete || last + 1 < target.restarts) =>
            {
                // Kubernetes has the log of the last container before this one.
                let before = target.restarts - 1;
                if before > last {
                    (before, true, before - last - 1)
                } else {
                    (target.restarts, false, 0)
                }
            }
            Some(last) if last < target.restarts => (last, true, 0),
            Some(_) if self.is_complete => return None,
            Some(last) => (last.max(target.restarts), false, 0),
        };
        let again = self.seen.reopen();
        let begin = begin.unwrap_or_default();
        let open = Open {
            container,
            has_ended: previous || !target.is_running,
            part: Part {
                previous,
                follow: true,
                since: again.max(begin.since),
                // `tail` applies only to the first log of a pod; later logs are read completely.
                tail: begin.tail.filter(|_| self.container.is_none()),
            },
            num_lost,
        };
        self.open = Some(open);
        Some(open)
    }

    /// Records that the open log has ended, or that it could not be read.
    pub(super) fn ended(&mut self, was_read: bool) {
        let Some(open) = self.open.take() else { return };
        // A previous log that cannot be read is lost; the present log is tried again.
        if was_read || open.part.previous {
            self.container = Some(open.container);
            self.is_complete = open.has_ended;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(restarts: u32, is_running: bool) -> Target {
        Target {
            pod: "p".to_owned(),
            uid: "u".to_owned(),
            worker: 0,
            restarts,
            has_started: true,
            is_running,
        }
    }

    /// The container that is opened next, and whether as the previous one.
    fn opens(reader: &mut Reader, restarts: u32, is_running: bool) -> Option<(u32, bool)> {
        let open = reader.next(&target(restarts, is_running), None)?;
        reader.ended(true);
        Some((open.container, open.part.previous))
    }

    #[test]
    fn restarted_container_is_read_before_the_next_one() {
        let mut reader = Reader::default();
        assert_eq!(opens(&mut reader, 0, true), Some((0, false)));
        // The stream broke, and then the container restarted.
        assert_eq!(opens(&mut reader, 1, true), Some((0, true)));
        assert_eq!(opens(&mut reader, 1, true), Some((1, false)));
        // The container ended: one more read completes it.
        assert_eq!(opens(&mut reader, 1, false), Some((1, false)));
        assert_eq!(opens(&mut reader, 1, false), None);
        assert_eq!(opens(&mut reader, 2, true), Some((2, false)));
    }

    #[test]
    fn reopened_log_does_not_begin_before_since() {
        let since = Timestamp::from_second(1_000).unwrap();
        let begin = Begin {
            since: Some(since),
            tail: Some(3),
        };
        let mut reader = Reader::default();
        let first = reader.next(&target(0, true), Some(begin)).unwrap();
        assert_eq!((first.part.since, first.part.tail), (Some(since), Some(3)));
        assert!(reader.seen.is_new(Some(since), "a"));
        reader.ended(true);
        let again = reader.next(&target(0, true), Some(begin)).unwrap();
        assert_eq!((again.part.since, again.part.tail), (Some(since), None));
    }

    #[test]
    fn containers_with_lost_logs_are_counted() {
        let mut reader = Reader::default();
        assert_eq!(opens(&mut reader, 0, false), Some((0, false)));
        let open = reader.next(&target(4, true), None).unwrap();
        assert_eq!(
            (open.container, open.part.previous, open.num_lost),
            (3, true, 2)
        );
        reader.ended(true);
        assert_eq!(opens(&mut reader, 4, true), Some((4, false)));
    }

    #[test]
    fn failed_open_is_retried_except_for_previous_logs() {
        let mut reader = Reader::default();
        assert!(reader.next(&target(0, true), None).is_some());
        assert!(reader.next(&target(0, true), None).is_none(), "it is open");
        reader.ended(false);
        assert_eq!(opens(&mut reader, 0, true), Some((0, false)));
        assert!(reader.next(&target(1, true), None).unwrap().part.previous);
        reader.ended(false);
        assert_eq!(opens(&mut reader, 1, true), Some((1, false)));
    }
}
