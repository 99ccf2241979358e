//! Timeouts of collectives: to connect, in the first step of a generation, and in later steps.
//! Pure.
//!
//! The time to connect grows with the number of ranks, and in the first step of a generation some
//! ranks compile, allocate and tune while others wait. Timeouts of steps are learned from the
//! durations of steps unless they are set; that of the first step is learned from earlier
//! generations.

use std::time::Duration;

use super::{
    COLLECTIVE_TIMEOUT_SECONDS, CONNECT_TIMEOUT_SECONDS, DEFAULT_COLLECTIVE_TIMEOUT_SECONDS,
    DEFAULT_CONNECT_TIMEOUT_SECONDS, DEFAULT_FIRST_STEP_TIMEOUT_SECONDS, EnvironmentInvalid,
    FIRST_STEP_TIMEOUT_SECONDS, number,
};

/// Factor between the longest step so far and the timeout of a collective.
const FACTOR: u32 = 3;
/// How long a rank waits for the slowest one in the first evaluation of a generation, or while
/// results are written. It is less than the agent's limit for them, so a rank whose peer has
/// silently gone is back in the lobby before that.
const BESIDE_STEPS: Duration = Duration::from_mins(29);

/// The three timeouts of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectiveTimeouts {
    /// Time to connect all ranks of a generation.
    pub connect: Duration,
    /// Timeout of a collective before the first step of a generation is committed; `None` if it is
    /// learned from earlier generations.
    pub first_step: Option<Duration>,
    /// Timeout of a collective after that; `None` if it is learned.
    pub later: Option<Duration>,
}

impl Default for CollectiveTimeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(DEFAULT_CONNECT_TIMEOUT_SECONDS),
            first_step: None,
            later: None,
        }
    }
}

impl CollectiveTimeouts {
    /// The timeout of a collective before the first step of a generation is committed. `expected`
    /// is the duration of that step in earlier generations, 0 if it is unknown. The learned timeout
    /// is three times that, at least [`DEFAULT_FIRST_STEP_TIMEOUT_SECONDS`].
    #[must_use]
    pub fn of_first_step(&self, expected: Duration) -> Duration {
        let least = Duration::from_secs(DEFAULT_FIRST_STEP_TIMEOUT_SECONDS);
        self.first_step
            .unwrap_or_else(|| least.max(FACTOR * expected))
    }

    /// The timeout of a collective after the first step. `longest` is the
    /// longest step of this generation. The learned timeout is three times
    /// that, at least [`DEFAULT_COLLECTIVE_TIMEOUT_SECONDS`].
    #[must_use]
    pub fn of_step(&self, longest: Duration) -> Duration {
        let least = Duration::from_secs(DEFAULT_COLLECTIVE_TIMEOUT_SECONDS);
        self.later.unwrap_or_else(|| least.max(FACTOR * longest))
    }

    /// The same for a collective that a host launches while the device still computes the previous
    /// step: the collective also waits for that step.
    #[must_use]
    pub fn of_step_launched_ahead(&self, longest: Duration) -> Duration {
        self.of_step(longest) + longest
    }

    /// The timeout of a collective in an evaluation, or while results are written, whose
    /// durations differ between ranks. `longest` is the longest evaluation of this generation;
    /// `None` if there was none.
    #[must_use]
    pub fn beside_steps(&self, longest: Option<Duration>) -> Duration {
        match longest {
            Some(longest) => self.of_step(longest),
            None => self.later.unwrap_or(BESIDE_STEPS),
        }
    }

    /// Names and values for a process to start. Learned timeouts are not set.
    #[must_use]
    pub fn to_pairs(&self) -> Vec<(&'static str, String)> {
        let Self {
            connect,
            first_step,
            later,
        } = self;
        [
            (CONNECT_TIMEOUT_SECONDS, Some(connect)),
            (FIRST_STEP_TIMEOUT_SECONDS, first_step.as_ref()),
            (COLLECTIVE_TIMEOUT_SECONDS, later.as_ref()),
        ]
        .into_iter()
        .filter_map(|(name, timeout)| Some((name, timeout?.as_secs().to_string())))
        .collect()
    }

    /// Reads the timeouts through `get` (`|name| std::env::var(name).ok()`). A variable that is not
    /// set, or empty, has its default.
    ///
    /// # Errors
    /// Fails with the first variable that is not a whole number of seconds of at least 1.
    pub fn read(get: impl Fn(&str) -> Option<String>) -> Result<Self, EnvironmentInvalid> {
        let read = |variable| {
            let Some(text) = get(variable).filter(|text| !text.is_empty()) else {
                return Ok(None);
            };
            let seconds: std::num::NonZeroU64 = number(variable, text)?;
            Ok(Some(Duration::from_secs(seconds.get())))
        };
        let default = Self::default();
        let later = read(COLLECTIVE_TIMEOUT_SECONDS)?;
        Ok(Self {
            connect: read(CONNECT_TIMEOUT_SECONDS)?.unwrap_or(default.connect),
            first_step: read(FIRST_STEP_TIMEOUT_SECONDS)?.or(later),
            later,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn timeouts_round_trip() {
        for (first_step, later) in [
            (None, None),
            (Some(seconds(90)), None),
            (Some(seconds(90)), Some(seconds(7))),
        ] {
            let timeouts = CollectiveTimeouts {
                connect: seconds(300),
                first_step,
                later,
            };
            let pairs = timeouts.to_pairs();
            let read = CollectiveTimeouts::read(|name| {
                let found = pairs.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| value.clone())
            });
            assert_eq!(read, Ok(timeouts));
        }
        assert_eq!(
            CollectiveTimeouts::read(|_| None),
            Ok(CollectiveTimeouts::default())
        );
    }

    #[test]
    fn step_timeout_grows_with_longest_step() {
        let timeouts = CollectiveTimeouts::default();
        assert_eq!(timeouts.of_first_step(Duration::ZERO), seconds(120));
        assert_eq!(timeouts.of_first_step(seconds(60)), seconds(180));
        assert_eq!(timeouts.of_step(Duration::from_millis(5)), seconds(30));
        assert_eq!(timeouts.of_step(seconds(60)), seconds(180));
        let set = CollectiveTimeouts {
            later: Some(seconds(5)),
            ..timeouts
        };
        assert_eq!(set.of_step(seconds(60)), seconds(5));
        assert_eq!(timeouts.of_step_launched_ahead(seconds(60)), seconds(240));
        assert_eq!(set.of_step_launched_ahead(seconds(60)), seconds(65));
        assert_eq!(set.of_first_step(Duration::ZERO), seconds(120));
        let first = CollectiveTimeouts {
            first_step: Some(seconds(9)),
            ..timeouts
        };
        assert_eq!(first.of_first_step(seconds(60)), seconds(9));
        assert_eq!(set.beside_steps(None), seconds(5));
        assert_eq!(timeouts.beside_steps(Some(seconds(60))), seconds(180));
    }

    #[test]
    fn timeout_of_later_steps_applies_to_the_first() {
        let set = |name: &str| (name == COLLECTIVE_TIMEOUT_SECONDS).then(|| "7".to_owned());
        let timeouts = CollectiveTimeouts::read(set).unwrap();
        assert_eq!(timeouts.of_first_step(seconds(60)), seconds(7));
    }

    #[test]
    fn timeout_of_zero_is_refused_by_name() {
        for variable in [
            CONNECT_TIMEOUT_SECONDS,
            FIRST_STEP_TIMEOUT_SECONDS,
            COLLECTIVE_TIMEOUT_SECONDS,
        ] {
            let error = CollectiveTimeouts::read(|name| (name == variable).then(|| "0".to_owned()));
            assert_eq!(error.unwrap_err().variable, variable);
        }
    }
}
