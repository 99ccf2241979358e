//! How long the ranks of a world wait for each other once a newer generation is known: until the newcomers have
//! arrived, until every rank has heard of it, until a rank that does not answer is left behind. Pure.
//!
//! No fixed number of seconds decides about a step. Patience is learned from the longest step, and what one
//! generation has learned is the floor of the next one ([`StepEstimate`]): a model whose steps take 8 s is not cut
//! off before its first step because another worker has arrived.

use std::time::{Duration, Instant};

mod join_wait;
mod step_estimate;

pub use join_wait::JoinWait;
pub use step_estimate::StepEstimate;

/// Least time without a step boundary after which the wait for the other ranks is over.
const PATIENCE: Duration = Duration::from_secs(2);
/// The same in units of the longest step.
const STEPS_OF_PATIENCE: u32 = 3;
/// Patience with a first step when nothing is known of this training's steps: it may compile kernels, tune
/// convolutions and connect. The agent's watchdog judges a first step after the same time.
const PATIENCE_WITH_AN_UNKNOWN_STEP: Duration = Duration::from_secs(300);
/// Patience with the first bytes of a state: the sender may have to compute a digest and connect first.
const PATIENCE_WITH_FIRST_BYTES: Duration = Duration::from_secs(30);
/// After this time, or [`STEPS_UNTIL_ALL_KNOW`] of the longest step, a rank that has not heard of a newer
/// generation is left behind. A kubelet tells it within a second. The time is longer than a [`JoinWait`] stays open (a
/// step and [`join_wait::PATIENCE`]) plus the step in which the generation was heard of, and the two steps more that a world
/// needs whose hosts run a step ahead of their devices.
const PATIENCE_UNTIL_ALL_KNOW: Duration = Duration::from_secs(15);
/// See [`PATIENCE_UNTIL_ALL_KNOW`].
const STEPS_UNTIL_ALL_KNOW: u32 = 6;
/// How long an evaluation or a save may delay a newer generation. It is less than newcomers wait at the store. A
/// peer that is dead ends the collective earlier, as without a newer generation.
const PATIENCE_BESIDE_STEPS: Duration = Duration::from_secs(90);
/// After so many steps of a generation, what earlier ones have taught is not needed any more.
const STEPS_UNTIL_KNOWN: u32 = 20;

/// What the ranks of a world do together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activity {
    /// They send the state to the ranks that lack it. Each round of chunks counts as a move.
    Sharing,
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
pub enum Timeout {
    /// No boundary came although a newer generation was known for so long.
    NoProgress(Duration),
    /// Boundaries come, but a rank has not heard of the newer generation for so long.
    GenerationUnseen(Duration),
}

impl std::fmt::Display for Timeout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoProgress(span) => {
                write!(
                    f,
                    "a newer generation is known, and nothing has moved for {span:.1?}"
                )
            }
            Self::GenerationUnseen(span) => write!(
                f,
                "a newer generation is known for {span:.1?}, and not all ranks have heard of it"
            ),
        }
    }
}

/// What is known of how a world moves.
#[derive(Clone, Copy, Debug)]
pub struct GroupProgress {
    activity: Activity,
    /// When the activity began.
    since: Instant,
    /// Since when a newer generation is known; later by what was not spent at steps.
    known_since: Option<Instant>,
    /// Last sign that its collectives move.
    moved_at: Instant,
    /// Longest time between two rounds of chunks of the state; `None` before the first one.
    longest_chunk: Option<Duration>,
    /// When the step at hand, or the last one, began.
    step_began: Option<Instant>,
    /// Steps of this generation that have begun, and that have ended.
    num_begun: u32,
    num_ended: u32,
    /// What this generation has taught, and those before it.
    own: StepEstimate,
    before: StepEstimate,
}

impl GroupProgress {
    /// A world of so many ranks that is there since now and will share its state, after others of which this was
    /// learned.
    #[must_use]
    pub fn begin(now: Instant, estimate: StepEstimate, world_size: u32) -> Self {
        Self {
            activity: Activity::Sharing,
            since: now,
            known_since: None,
            moved_at: now,
            longest_chunk: None,
            step_began: None,
            num_begun: 0,
            num_ended: 0,
            own: StepEstimate {
                world_size,
                ..StepEstimate::default()
            },
            before: estimate.scaled_to(world_size),
        }
    }

    /// What the ranks together have learned of earlier generations. A newcomer, which knows nothing, has their patience
    /// then, and does not hold up the others when one of them hangs before its first step.
    pub fn expect(&mut self, estimate: StepEstimate) {
        self.before = estimate.scaled_to(self.own.world_size);
    }

    /// What the next generation can expect.
    #[must_use]
    pub fn estimate(&self) -> StepEstimate {
        StepEstimate {
            first_step: self.own.first_step.or(self.before.first_step),
            longest_step: self.later_step(),
            world_size: self.own.world_size,
        }
    }

    /// A step begins. Steps are measured from start to start, because all time between two boundaries counts.
    pub fn step_begins(&mut self, now: Instant) {
        if self.activity != Activity::Steps {
            // No rank could leave meanwhile.
            self.known_since = self
                .known_since
                .map(|known| known + now.saturating_duration_since(known.max(self.since)));
            self.enter(Activity::Steps, now);
        }
        self.learn(now);
        // What was prepared for the first step is part of it.
        let prepared_since = self.step_began.filter(|_| self.num_begun == 0);
        self.num_begun = self.num_begun.saturating_add(1);
        self.step_began = Some(prepared_since.unwrap_or(now));
    }

    /// All ranks have reached the end of a step. A host that runs ahead of its device hears of it after the next step
    /// has begun. The time since the next step began is then also about one step.
    pub fn step_ends(&mut self, now: Instant) {
        self.learn(now);
        // The next one may have begun already.
        self.num_ended = self.num_begun.min(self.num_ended.saturating_add(1));
        self.moved_at = now;
    }

    /// From now on the ranks do something else.
    pub const fn enter(&mut self, activity: Activity, now: Instant) {
        self.activity = activity;
        self.since = now;
        self.moved_at = now;
        self.step_began = None;
    }

    /// The state is shared: from now on the ranks prepare their first step.
    pub const fn prepare_steps(&mut self, now: Instant) {
        self.enter(Activity::Steps, now);
        self.step_began = Some(now);
    }

    /// The ranks wait for a checkpoint that one of them reads, and bytes of it have come.
    pub const fn reads(&mut self, now: Instant) {
        self.moved_at = now;
    }

    /// A collective has ended on all ranks.
    pub fn moves(&mut self, now: Instant) {
        if self.activity == Activity::Sharing {
            let took = now.saturating_duration_since(self.moved_at);
            self.longest_chunk = Some(took.max(self.longest_chunk.unwrap_or_default()));
        }
        self.moved_at = now;
    }

    /// A newer generation is known since then.
    pub fn know(&mut self, since: Instant) {
        self.known_since.get_or_insert(since);
    }

    /// The longest step that is to be expected; zero when nothing is known.
    #[must_use]
    pub fn longest_step(&self) -> Duration {
        self.expected_step().unwrap_or_default()
    }

    /// Whether the wait for peers is over.
    #[must_use]
    pub fn is_over(&self, now: Instant) -> Option<Timeout> {
        let since = self.known_since?;
        let known = now.saturating_duration_since(since);
        let still = now.saturating_duration_since(since.max(self.moved_at));
        let until_all_know =
            PATIENCE_UNTIL_ALL_KNOW.max(self.longest_step() * STEPS_UNTIL_ALL_KNOW);
        if still >= self.patience() {
            Some(Timeout::NoProgress(still))
        } else if self.activity == Activity::Steps && self.num_ended > 0 && known >= until_all_know
        {
            Some(Timeout::GenerationUnseen(known))
        } else {
            None
        }
    }

    /// How long nothing may move.
    fn patience(&self) -> Duration {
        match self.activity {
            Activity::Sharing => self
                .longest_chunk
                .map_or(PATIENCE_WITH_FIRST_BYTES, |chunk| {
                    PATIENCE.max(chunk * STEPS_OF_PATIENCE)
                }),
            Activity::Steps => self
                .expected_step()
                .map_or(PATIENCE_WITH_AN_UNKNOWN_STEP, |step| {
                    PATIENCE.max(step * STEPS_OF_PATIENCE)
                }),
            Activity::Evaluation | Activity::Saving => PATIENCE_BESIDE_STEPS,
        }
    }

    /// How long the step at hand may be expected to take, if anything is known.
    fn expected_step(&self) -> Option<Duration> {
        if self.num_ended == 0 {
            return self.before.first_step.max(self.before.longest_step);
        }
        // After the first step alone, the others are expected to be like it.
        self.later_step().or(self.own.first_step)
    }

    /// The longest step that was not the first of its generation. Those of earlier generations count until this
    /// one is known well.
    fn later_step(&self) -> Option<Duration> {
        let is_known = self.num_ended >= STEPS_UNTIL_KNOWN;
        let before = self.before.longest_step.filter(|_| !is_known);
        // Before the second step has ended, a host that runs ahead has measured no more than how long it launches.
        let own = self.own.longest_step.filter(|_| self.num_ended > 1);
        own.max(before)
    }

    fn learn(&mut self, now: Instant) {
        let Some(began) = self.step_began else { return };
        let took = Some(now.saturating_duration_since(began));
        if self.num_begun <= 1 {
            self.own.first_step = self.own.first_step.max(took);
        } else {
            self.own.longest_step = self.own.longest_step.max(took);
        }
    }
}

#[cfg(test)]
mod tests;
