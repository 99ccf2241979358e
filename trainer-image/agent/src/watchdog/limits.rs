//! How long a process may stay without progress, by phase. Pure.

use std::time::Duration;

use roundhouse_contract::{Phase, environment::CollectiveTimeouts};

/// How many times the longest span so far a span may take.
const FACTOR: u32 = 5;
/// Least time of a learned limit.
pub(super) const FLOOR: Duration = Duration::from_secs(30);
/// Before anything is learned: the first step loads, allocates and tunes.
const UNLEARNED: Duration = Duration::from_secs(300);
/// Data may have to be indexed, a large test split to be evaluated, a large state to be written.
const LONG: Duration = Duration::from_mins(30);
/// For ranks to gather at the store: a trainer that waits there longer, for a world with long steps, gives signs of
/// life.
const GATHERING: Duration = Duration::from_secs(150);
/// Least time for a step of a script. Between a commit and the next step a script may evaluate, draw samples and upload
/// them: that is no hang, and its earlier steps say nothing about it. PyTorch's own collectives wait 10 minutes.
const LEAST_OF_SCRIPT: Duration = Duration::from_mins(15);
/// Peers of a hung process give up first, and wait in the lobby when it is judged.
pub(super) const MARGIN: Duration = Duration::from_secs(10);

/// What the user wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Limits are learned.
    Auto,
    /// Nobody is ever judged.
    Off,
    /// So long for every step.
    After(Duration),
}

impl Policy {
    /// From seconds: none is learned, 0 is off.
    #[must_use]
    pub const fn from_seconds(seconds: Option<u64>) -> Self {
        match seconds {
            None => Self::Auto,
            Some(0) => Self::Off,
            Some(seconds) => Self::After(Duration::from_secs(seconds)),
        }
    }

    /// How long collectives wait for their peers if the user says how long a step may take: when a process hangs,
    /// its peers must be back in the lobby before the watchdog judges.
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
    /// What the user wants.
    pub policy: Policy,
    /// How long collectives wait for their peers.
    pub timeouts: CollectiveTimeouts,
    /// Whether the processes run a script of the user's.
    pub runs_script: bool,
}

impl Limits {
    /// The limit in a phase, from its longest span in this generation and in those before; `None`: it
    /// may last for ever.
    #[must_use]
    pub fn of(
        &self,
        phase: Phase,
        longest: Option<Duration>,
        before: Option<Duration>,
    ) -> Option<Duration> {
        let (own, wanted) = match (self.policy, phase) {
            // Waiting for others is what the lobby is for.
            (Policy::Off, _) | (_, Phase::Lobby | Phase::Stranded) => return None,
            (Policy::Auto, _) => (self.learned(phase, longest, before), self.least(phase)),
            // It says how long a step may take; setting up and writing results may take longer.
            (Policy::After(limit), Phase::Preparing | Phase::Forming | Phase::Saving) => {
                (self.learned(phase, None, None), limit)
            }
            (Policy::After(limit), Phase::Training | Phase::Evaluating | Phase::Done) => {
                (Duration::ZERO, limit)
            }
        };
        Some(own.max(wanted))
    }

    /// Whatever was learned.
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
            // Not learned: bytes move all the time, and then a volume is away for a while.
            Phase::Preparing | Phase::Saving => return LONG,
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
