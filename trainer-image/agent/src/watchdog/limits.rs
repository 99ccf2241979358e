//! Maximum time without progress, by phase.

use std::time::Duration;

use roundhouse_contract::{Phase, environment::CollectiveTimeouts};

/// A learned limit is this many times the longest time so far.
const FACTOR: u32 = 5;
/// Minimum of a learned limit.
pub(super) const FLOOR: Duration = Duration::from_secs(30);
/// Limit before any step was measured: the first step loads, allocates and tunes.
const UNLEARNED: Duration = Duration::from_secs(300);
/// Limit of indexing data, evaluating a large test split and writing a large state.
const LONG: Duration = Duration::from_mins(30);
/// Limit of the rendezvous at the store. A trainer that waits there longer, for a process group
/// with long steps, reports progress.
const GATHERING: Duration = Duration::from_secs(150);
/// Minimum limit for a step of a script. Between a commit and the next step a script may evaluate,
/// draw samples and upload them. That is not a hang, and its earlier steps do not predict it.
/// PyTorch's own collectives wait 10 minutes.
const LEAST_OF_SCRIPT: Duration = Duration::from_mins(15);
/// Peers of a hung process give up this much earlier, so they wait in the lobby when it is judged.
pub(super) const MARGIN: Duration = Duration::from_secs(10);

/// The user's setting of the watchdog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The limits are learned from the steps.
    Auto,
    /// No process is ever judged.
    Off,
    /// This limit applies to every step.
    After(Duration),
}

impl Policy {
    /// Parses a number of seconds: `None` is learned, 0 is off.
    #[must_use]
    pub const fn from_seconds(seconds: Option<u64>) -> Self {
        match seconds {
            None => Self::Auto,
            Some(0) => Self::Off,
            Some(seconds) => Self::After(Duration::from_secs(seconds)),
        }
    }

    /// Returns the timeout of collectives if the user limits a step. When a process hangs, its
    /// peers must be back in the lobby before the watchdog judges.
    #[must_use]
    pub fn collective_timeout(self) -> Option<Duration> {
        match self {
            Self::Auto | Self::Off => None,
            Self::After(limit) => {
                let half = Duration::from_secs(limit.as_secs() / 2);
                Some(half.max(Duration::from_secs(1)))
            }
        }
    }
}

/// The limits of all phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The user's setting of the watchdog.
    pub policy: Policy,
    /// Timeouts of the collectives of the processes.
    pub timeouts: CollectiveTimeouts,
    /// Whether the processes run a script of the user.
    pub runs_script: bool,
}

impl Limits {
    /// Returns the limit of a phase, from its longest time without progress in this generation and
    /// in earlier ones. `None` means no limit.
    #[must_use]
    pub fn of(
        &self,
        phase: Phase,
        longest: Option<Duration>,
        before: Option<Duration>,
    ) -> Option<Duration> {
        let (own, wanted) = match (self.policy, phase) {
            // Processes wait in the lobby for others, without a limit.
            (Policy::Off, _) | (_, Phase::Lobby | Phase::Stranded) => return None,
            (Policy::Auto, _) => (self.learned(phase, longest, before), self.least(phase)),
            // The setting limits steps. Preparing and saving may take longer.
            (
                Policy::After(limit),
                Phase::Preparing | Phase::Forming | Phase::Saving | Phase::SavingPart,
            ) => (self.learned(phase, None, None), limit),
            (Policy::After(limit), Phase::Training | Phase::Evaluating | Phase::Done) => {
                (Duration::ZERO, limit)
            }
        };
        Some(own.max(wanted))
    }

    /// Returns the minimum of the limit in a phase.
    const fn least(&self, phase: Phase) -> Duration {
        match phase {
            Phase::Training | Phase::Evaluating | Phase::Done if self.runs_script => {
                LEAST_OF_SCRIPT
            }
            _ => Duration::ZERO,
        }
    }

    fn learned(
        &self,
        phase: Phase,
        longest: Option<Duration>,
        before: Option<Duration>,
    ) -> Duration {
        let unlearned = match phase {
            // These limits are not learned: bytes may move steadily for long, and then the volume
            // is away for a while.
            Phase::Preparing | Phase::Saving | Phase::SavingPart => return LONG,
            Phase::Forming => {
                return GATHERING
                    + self.timeouts.connect
                    + self.timeouts.of_first_step(Duration::ZERO);
            }
            Phase::Evaluating => LONG,
            Phase::Lobby | Phase::Stranded | Phase::Training | Phase::Done => UNLEARNED,
        };
        let Some(longest) = longest else {
            let before = before.unwrap_or_default();
            let peers_give_up = self.timeouts.of_first_step(before) + MARGIN;
            return unlearned.max(FACTOR * before).max(peers_give_up);
        };
        let peers_give_up = self.timeouts.of_step(longest) + longest + MARGIN;
        FLOOR.max(FACTOR * longest).max(peers_give_up)
    }
}
