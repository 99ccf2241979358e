//! How long a checkpoint save waits for a volume, and when it reports a delay.

use std::time::Duration;

/// Delays are reported after the limit divided by this number.
const REPORT_FRACTION: u32 = 10;

/// Limits of the time that a volume may take without moving bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoTimeout {
    limit: Duration,
}

/// A delay of the save in flight that is worth reporting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delay {
    /// The volume has accepted no bytes from this many ranks for this time.
    Stuck(u64, Duration),
    /// The save has lasted for this time, and another save that was due was skipped.
    Slow(Duration),
}

/// State of the save in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flight {
    /// Time since it began; `None` if there is no save.
    pub lasts: Option<Duration>,
    /// Whether another save was due meanwhile.
    pub has_skipped: bool,
    /// Number of ranks whose part has made no progress for long enough to be reported.
    pub num_stuck: u64,
    /// Time since the first of them reported this.
    pub stuck: Duration,
}

impl IoTimeout {
    /// `limit` is the longest time without moved bytes; a delay is reported after a tenth of it.
    #[must_use]
    pub const fn new(limit: Duration) -> Self {
        Self { limit }
    }

    /// Whether to report that nothing has moved for this long.
    #[must_use]
    pub fn is_worth_reporting(&self, still: Duration) -> bool {
        still >= self.report_after()
    }

    /// Whether to stop waiting after nothing has moved for this long.
    #[must_use]
    pub fn is_over(&self, still: Duration) -> bool {
        still >= self.limit
    }

    /// Returns the delay to report for the save in flight. A long save is no problem as long as it
    /// makes progress and no other save is due.
    #[must_use]
    pub fn delay(&self, flight: &Flight) -> Option<Delay> {
        let Flight {
            lasts,
            has_skipped,
            num_stuck,
            stuck,
        } = *flight;
        if num_stuck > 0 {
            let still = self.report_after() + stuck;
            return Some(Delay::Stuck(num_stuck, self.rounded(still)));
        }
        let lasts = lasts.filter(|lasts| has_skipped && self.is_worth_reporting(*lasts))?;
        Some(Delay::Slow(self.rounded(lasts)))
    }

    /// Rounds down to 1, 2, 5, 10, 20, ... times the reporting threshold. So a lasting delay is
    /// reported again at growing intervals, not each second.
    #[must_use]
    pub fn rounded(&self, span: Duration) -> Duration {
        let mut reported = self.report_after();
        for factor in [2.0, 2.5, 2.0].into_iter().cycle().take(24) {
            let next = reported.mul_f64(factor);
            if next > span {
                break;
            }
            reported = next;
        }
        reported
    }

    fn report_after(&self) -> Duration {
        self.limit / REPORT_FRACTION
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn delay_is_reported_for_stuck_and_blocking_saves() {
        let io_timeout = IoTimeout::new(seconds(600));
        for (what, lasts, has_skipped, num_stuck, stuck, expected) in [
            ("no save", None, false, 0, 0, None),
            ("quick save", Some(59), true, 0, 0, None),
            (
                "long save that makes progress",
                Some(3_000),
                false,
                0,
                0,
                None,
            ),
            (
                "save that delays others",
                Some(75),
                true,
                0,
                0,
                Some(Delay::Slow(seconds(60))),
            ),
            (
                "save that delays others for long",
                Some(350),
                true,
                0,
                0,
                Some(Delay::Slow(seconds(300))),
            ),
            (
                "one rank without progress",
                Some(61),
                true,
                1,
                0,
                Some(Delay::Stuck(1, seconds(60))),
            ),
            (
                "two ranks without progress for long",
                Some(200),
                false,
                2,
                130,
                Some(Delay::Stuck(2, seconds(120))),
            ),
            (
                "save of an earlier generation",
                None,
                false,
                1,
                0,
                Some(Delay::Stuck(1, seconds(60))),
            ),
        ] {
            let flight = Flight {
                lasts: lasts.map(seconds),
                has_skipped,
                num_stuck,
                stuck: seconds(stuck),
            };
            assert_eq!(io_timeout.delay(&flight), expected, "{what}: {flight:?}");
        }
    }

    #[test]
    fn lasting_delay_is_reported_at_growing_intervals() {
        let io_timeout = IoTimeout::new(seconds(600));
        let mut reported: Vec<u64> = (60..=7_200)
            .map(|second| io_timeout.rounded(seconds(second)).as_secs())
            .collect();
        reported.dedup();
        assert_eq!(reported, [60, 120, 300, 600, 1_200, 3_000, 6_000]);
    }

    #[test]
    fn wait_ends_at_its_limit() {
        let io_timeout = IoTimeout::new(seconds(20));
        assert!(
            !io_timeout.is_over(Duration::from_millis(19_999)) && io_timeout.is_over(seconds(20))
        );
        assert!(io_timeout.is_worth_reporting(seconds(2)));
    }
}
