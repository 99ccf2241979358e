//! How long a volume is waited for, and when somebody is told. Pure.

use std::time::Duration;

/// Of the limit, after which people are told.
const TOLD_AFTER: u32 = 10;

/// How long a volume may take or give nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    limit: Duration,
}

/// Why the save in flight is worth telling of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delay {
    /// The volume takes nothing from so many ranks, for so long.
    Stuck(u64, Duration),
    /// It is written for so long already that another, which was due, is left out.
    Slow(Duration),
}

/// What is known of the save in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flight {
    /// Since it began; `None`: there is none.
    pub lasts: Option<Duration>,
    /// Whether another was due meanwhile.
    pub has_skipped: bool,
    /// Ranks whose part has not moved for as long as is worth telling.
    pub num_stuck: u64,
    /// Since the first of them was heard of.
    pub stuck: Duration,
}

impl Patience {
    /// With a limit.
    #[must_use]
    pub const fn new(limit: Duration) -> Self {
        Self { limit }
    }

    /// Whether people should know that nothing has moved for so long.
    #[must_use]
    pub fn is_worth_telling(&self, still: Duration) -> bool {
        still >= self.told_after()
    }

    /// Whether it is not waited for any more when nothing has moved for so long.
    #[must_use]
    pub fn is_over(&self, still: Duration) -> bool {
        still >= self.limit
    }

    /// What people should know of the save in flight. A long one is no trouble as long as it moves and
    /// keeps no other from being saved.
    #[must_use]
    pub fn delay(&self, flight: &Flight) -> Option<Delay> {
        let Flight {
            lasts,
            has_skipped,
            num_stuck,
            stuck,
        } = *flight;
        if num_stuck > 0 {
            let still = self.told_after() + stuck;
            return Some(Delay::Stuck(num_stuck, self.rounded(still)));
        }
        let lasts = lasts.filter(|lasts| has_skipped && self.is_worth_telling(*lasts))?;
        Some(Delay::Slow(self.rounded(lasts)))
    }

    /// The last of 1, 2, 5, 10, 20, ... times what is worth telling: so a trouble that lasts is told again
    /// now and then, and not each second.
    #[must_use]
    pub fn rounded(&self, span: Duration) -> Duration {
        let mut told = self.told_after();
        for factor in [2.0, 2.5, 2.0].into_iter().cycle().take(24) {
            let next = told.mul_f64(factor);
            if next > span {
                break;
            }
            told = next;
        }
        told
    }

    fn told_after(&self) -> Duration {
        self.limit / TOLD_AFTER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_save_is_told_of_when_it_stands_still_or_keeps_others_from_being_saved() {
        let patience = Patience::new(seconds(600));
        for (what, lasts, has_skipped, num_stuck, stuck, expected) in [
            ("nothing is saved", None, false, 0, 0, None),
            ("a quick one", Some(59), true, 0, 0, None),
            ("a long one that moves", Some(3_000), false, 0, 0, None),
            (
                "one that holds up others",
                Some(75),
                true,
                0,
                0,
                Some(Delay::Slow(seconds(60))),
            ),
            (
                "for long",
                Some(350),
                true,
                0,
                0,
                Some(Delay::Slow(seconds(300))),
            ),
            (
                "one rank stands still",
                Some(61),
                true,
                1,
                0,
                Some(Delay::Stuck(1, seconds(60))),
            ),
            (
                "for long",
                Some(200),
                false,
                2,
                130,
                Some(Delay::Stuck(2, seconds(120))),
            ),
            (
                "that of an earlier generation",
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
            assert_eq!(patience.delay(&flight), expected, "{what}: {flight:?}");
        }
    }

    #[test]
    fn a_trouble_that_lasts_is_told_less_and_less_often() {
        let patience = Patience::new(seconds(600));
        let mut told: Vec<u64> = (60..=7_200)
            .map(|second| patience.rounded(seconds(second)).as_secs())
            .collect();
        told.dedup();
        assert_eq!(told, [60, 120, 300, 600, 1_200, 3_000, 6_000]);
    }

    #[test]
    fn it_is_over_at_its_limit() {
        let patience = Patience::new(seconds(20));
        assert!(!patience.is_over(Duration::from_millis(19_999)) && patience.is_over(seconds(20)));
        assert!(patience.is_worth_telling(seconds(2)));
    }
}
