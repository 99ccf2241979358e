//! How long the ranks of a world take to leave it for a newer generation: until newcomers are there, until
//! everybody has heard, until a peer that does not answer is left behind. Pure.

use std::time::{Duration, Instant};

/// Without a step boundary for so long after a newer generation was seen, or for so many of the longest step,
/// the wait for the others is over.
const PATIENCE: Duration = Duration::from_secs(2);
const STEPS_OF_PATIENCE: u32 = 3;
/// After this, or so many of the longest step, who has not heard of a newer generation is left behind. A kubelet
/// tells it within a second. More than a [`Door`] stays open, which is a step and [`PATIENCE_AT_THE_DOOR`], and
/// the step in which it was heard of.
const PATIENCE_WITH_THE_DEAF: Duration = Duration::from_secs(15);
const STEPS_OF_PATIENCE_WITH_THE_DEAF: u32 = 4;
/// Newcomers are waited for so long; then the others wait for them at the store, where a newer generation is
/// heard of, too.
const PATIENCE_AT_THE_DOOR: Duration = Duration::from_secs(5);
/// How long an evaluation or a save may hold up a newer generation. Less than newcomers wait at the store. A
/// peer that is dead or silent ends the collective before, as without a newer generation.
const PATIENCE_BESIDE_STEPS: Duration = Duration::from_secs(90);

/// What the ranks of a world do together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activity {
    /// Steps, at the end of each of which they can leave.
    #[default]
    Steps,
    /// An evaluation of the test split, in one piece.
    Evaluation,
    /// A save that training waits for.
    Saving,
}

/// Why the wait for peers is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// No boundary came although a newer generation was known for so long.
    Stuck(Duration),
    /// Boundaries come, but somebody has not heard of the newer generation for so long.
    Unheard(Duration),
}

impl std::fmt::Display for Cut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stuck(span) => {
                write!(
                    f,
                    "a newer generation is known, and nothing has moved for {span:.1?}"
                )
            }
            Self::Unheard(span) => write!(
                f,
                "a newer generation is known for {span:.1?}, and not all ranks have heard of it"
            ),
        }
    }
}

/// What is known of how a world moves.
#[derive(Clone, Copy, Debug)]
pub struct Motion {
    activity: Activity,
    /// When the activity began.
    since: Instant,
    /// Since when a newer generation is known; later by what was not spent at steps.
    known_since: Option<Instant>,
    /// Last sign that its collectives move.
    moved_at: Instant,
    /// When the step at hand, or the last one, began.
    step_began: Option<Instant>,
    longest_step: Duration,
}

impl Motion {
    /// A world that is there since now. Nothing is known of its steps.
    #[must_use]
    pub const fn begin(now: Instant) -> Self {
        Self {
            activity: Activity::Steps,
            since: now,
            known_since: None,
            moved_at: now,
            step_began: None,
            longest_step: Duration::ZERO,
        }
    }

    /// A step begins. Steps are measured from start to start, for all between two boundaries counts.
    pub fn step_begins(&mut self, now: Instant) {
        if self.activity != Activity::Steps {
            // Nobody could leave meanwhile.
            self.known_since = self
                .known_since
                .map(|known| known + now.saturating_duration_since(known.max(self.since)));
            self.enter(Activity::Steps, now);
        }
        self.learn(now);
        self.step_began = Some(now);
    }

    /// All ranks have come to the end of a step.
    pub fn step_ends(&mut self, now: Instant) {
        self.learn(now);
        self.moved_at = now;
    }

    /// From now on they do something else.
    pub const fn enter(&mut self, activity: Activity, now: Instant) {
        self.activity = activity;
        self.since = now;
        self.moved_at = now;
        self.step_began = None;
    }

    /// A collective has ended on all ranks.
    pub const fn moves(&mut self, now: Instant) {
        self.moved_at = now;
    }

    /// A newer generation is known since then.
    pub fn know(&mut self, since: Instant) {
        self.known_since.get_or_insert(since);
    }

    /// The longest step so far.
    #[must_use]
    pub const fn longest_step(&self) -> Duration {
        self.longest_step
    }

    /// Whether the wait for peers is over.
    #[must_use]
    pub fn is_over(&self, now: Instant) -> Option<Cut> {
        let since = self.known_since?;
        let known = now.saturating_duration_since(since);
        let still = now.saturating_duration_since(since.max(self.moved_at));
        let steps = |number: u32| self.longest_step * number;
        let patience = match self.activity {
            Activity::Steps => PATIENCE.max(steps(STEPS_OF_PATIENCE)),
            Activity::Evaluation | Activity::Saving => PATIENCE_BESIDE_STEPS,
        };
        let deaf = PATIENCE_WITH_THE_DEAF.max(steps(STEPS_OF_PATIENCE_WITH_THE_DEAF));
        if still >= patience {
            Some(Cut::Stuck(still))
        } else if self.activity == Activity::Steps && known >= deaf {
            Some(Cut::Unheard(known))
        } else {
            None
        }
    }

    fn learn(&mut self, now: Instant) {
        let took = self
            .step_began
            .map(|began| now.saturating_duration_since(began));
        self.longest_step = self.longest_step.max(took.unwrap_or_default());
    }
}

/// The generation that newcomers are waited for, and since when.
#[derive(Clone, Copy, Debug, Default)]
pub struct Door {
    waiting: Option<(u64, Instant)>,
}

impl Door {
    /// Whether the wait for the newcomers of a generation is long enough, as asked when a step begins: what is
    /// answered counts at that step's end, so the step is part of the wait.
    pub fn is_patience_over(&mut self, generation: u64, step: Duration, now: Instant) -> bool {
        let since = match self.waiting {
            Some((known, since)) if known == generation => since,
            _ => now,
        };
        self.waiting = Some((generation, since));
        now.saturating_duration_since(since) + step >= PATIENCE_AT_THE_DOOR
    }
}

#[cfg(test)]
mod tests;
