//! How long the ranks of a process group wait for each other once a newer generation is known: for
//! new ranks to arrive, for every rank to see the generation, and for ranks that do not answer.
//!
//! No fixed number of seconds limits a step. The timeouts derive from the longest step, and the
//! estimate of one generation is the minimum for the next one ([`StepEstimate`]). So a model with
//! steps of 8 s is not interrupted before its first step because another worker has arrived.

use std::time::{Duration, Instant};

mod join_wait;
mod step_estimate;

pub use join_wait::JoinWait;
pub use step_estimate::StepEstimate;

/// Minimum time without a step boundary after which a rank stops waiting for the others.
const MIN_TIMEOUT: Duration = Duration::from_secs(2);
/// The same timeout as a multiple of the longest step.
const STEPS_PER_TIMEOUT: u32 = 3;
/// Timeout of the first step if no step of this training has been measured. The step may
/// compile kernels, tune convolutions and connect. The agent's watchdog uses the same time
/// for a first step.
const UNKNOWN_STEP_TIMEOUT: Duration = Duration::from_secs(300);
/// Timeout of the first bytes of a state, because the sender may first compute
/// a digest and connect.
const FIRST_BYTES_TIMEOUT: Duration = Duration::from_secs(30);
/// After this time, or [`NOTIFICATION_STEPS`] of the longest step, a rank that has not seen a
/// newer generation is left behind. A kubelet usually shows the generation within a second.
/// The time exceeds the sum of the longest [`JoinWait`] (one step and
/// [`join_wait::MIN_WAIT`]), the step in which the generation was seen, and two more steps for
/// hosts that run one step ahead of their devices.
const NOTIFICATION_TIMEOUT: Duration = Duration::from_secs(15);
/// The same time as a multiple of the longest step; see [`NOTIFICATION_TIMEOUT`].
const NOTIFICATION_STEPS: u32 = 6;
/// Maximum delay of a newer generation by an evaluation or a save. It is shorter than new ranks
/// wait at the store. A dead peer ends the collective earlier, as without a newer generation.
const EVALUATION_AND_SAVE_TIMEOUT: Duration = Duration::from_secs(90);
/// After this many steps of a generation, the estimates of earlier generations no longer count.
const STEPS_UNTIL_KNOWN: u32 = 20;

/// The present activity of a process group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activity {
    /// The ranks send the state to those that lack it. Each round of chunks counts as progress.
    Sharing,
    /// The ranks train. They can leave at the end of each step.
    #[default]
    Steps,
    /// The ranks evaluate the test split as a whole.
    Evaluation,
    /// The ranks save a checkpoint for which training waits.
    Saving,
}

/// The reason why a rank stops waiting for its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// No step ended although a newer generation was known for this time.
    NoProgress(Duration),
    /// Steps end, but a rank has not seen the newer generation for this time.
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
                "a newer generation is known for {span:.1?}, and not all ranks have seen it"
            ),
        }
    }
}

/// Measured progress of a process group.
#[derive(Clone, Copy, Debug)]
pub struct GroupProgress {
    activity: Activity,
    /// Start of the present activity.
    since: Instant,
    /// When the newer generation became known, moved later by time that was not spent on steps.
    known_since: Option<Instant>,
    /// Last time a collective made progress.
    moved_at: Instant,
    /// Longest time between two rounds of chunks of the state; `None` before the first one.
    longest_chunk: Option<Duration>,
    /// Start of the present or last step.
    step_began: Option<Instant>,
    /// Number of steps of this generation that have begun, and that have ended.
    num_begun: u32,
    num_ended: u32,
    /// Estimates from this generation, and from those before it.
    own: StepEstimate,
    before: StepEstimate,
}

impl GroupProgress {
    /// Starts measuring a process group of `world_size` ranks that will first send its state.
    /// `estimate` comes from earlier generations.
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

    /// Takes the estimate that the ranks have agreed on. A new rank has no estimate of its own.
    /// With this one it does not hold up the others if one of them hangs before its first step.
    pub fn expect(&mut self, estimate: StepEstimate) {
        self.before = estimate.scaled_to(self.own.world_size);
    }

    /// Returns the estimate for the next generation.
    #[must_use]
    pub fn estimate(&self) -> StepEstimate {
        StepEstimate {
            first_step: self.own.first_step.or(self.before.first_step),
            longest_step: self.later_step(),
            world_size: self.own.world_size,
        }
    }

    /// A step begins. Steps are measured from start to start, because all time
    /// between two boundaries counts.
    pub fn step_begins(&mut self, now: Instant) {
        if self.activity != Activity::Steps {
            // No rank could leave during the other activity.
            self.known_since = self
                .known_since
                .map(|known| known + now.saturating_duration_since(known.max(self.since)));
            self.enter(Activity::Steps, now);
        }
        self.learn(now);
        // Preparation for the first step is part of it.
        let prepared_since = self.step_began.filter(|_| self.num_begun == 0);
        self.num_begun = self.num_begun.saturating_add(1);
        self.step_began = Some(prepared_since.unwrap_or(now));
    }

    /// All ranks have reached the end of a step. A host that runs ahead of its device learns this
    /// after the next step has begun. The time since that start is then also about one step.
    pub fn step_ends(&mut self, now: Instant) {
        self.learn(now);
        // The next step may have begun already.
        self.num_ended = self.num_begun.min(self.num_ended.saturating_add(1));
        self.moved_at = now;
    }

    /// The ranks begin another activity.
    pub const fn enter(&mut self, activity: Activity, now: Instant) {
        self.activity = activity;
        self.since = now;
        self.moved_at = now;
        self.step_began = None;
    }

    /// The state is sent. The ranks prepare their first step.
    pub const fn prepare_steps(&mut self, now: Instant) {
        self.enter(Activity::Steps, now);
        self.step_began = Some(now);
    }

    /// The ranks wait for a checkpoint that one of them reads, and bytes of it have arrived.
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

    /// A newer generation has been known since this time.
    pub fn know(&mut self, since: Instant) {
        self.known_since.get_or_insert(since);
    }

    /// Returns the longest step to expect; zero if no step has been measured.
    #[must_use]
    pub fn longest_step(&self) -> Duration {
        self.expected_step().unwrap_or_default()
    }

    /// Returns the reason to stop waiting for peers, if there is one.
    #[must_use]
    pub fn is_over(&self, now: Instant) -> Option<Timeout> {
        let since = self.known_since?;
        let known = now.saturating_duration_since(since);
        let still = now.saturating_duration_since(since.max(self.moved_at));
        let until_all_know = NOTIFICATION_TIMEOUT.max(self.longest_step() * NOTIFICATION_STEPS);
        if still >= self.timeout() {
            Some(Timeout::NoProgress(still))
        } else if self.activity == Activity::Steps && self.num_ended > 0 && known >= until_all_know
        {
            Some(Timeout::GenerationUnseen(known))
        } else {
            None
        }
    }

    /// Maximum time without progress in the present activity.
    fn timeout(&self) -> Duration {
        match self.activity {
            Activity::Sharing => self.longest_chunk.map_or(FIRST_BYTES_TIMEOUT, |chunk| {
                MIN_TIMEOUT.max(chunk * STEPS_PER_TIMEOUT)
            }),
            Activity::Steps => self.expected_step().map_or(UNKNOWN_STEP_TIMEOUT, |step| {
                MIN_TIMEOUT.max(step * STEPS_PER_TIMEOUT)
            }),
            Activity::Evaluation | Activity::Saving => EVALUATION_AND_SAVE_TIMEOUT,
        }
    }

    /// Expected duration of the present step, if one has been measured.
    fn expected_step(&self) -> Option<Duration> {
        if self.num_ended == 0 {
            return self.before.first_step.max(self.before.longest_step);
        }
        // After the first step alone, expect the others to take as long.
        self.later_step().or(self.own.first_step)
    }

    /// The longest step that was not the first of its generation. Steps of earlier generations
    /// count until this generation has enough steps of its own.
    fn later_step(&self) -> Option<Duration> {
        let is_known = self.num_ended >= STEPS_UNTIL_KNOWN;
        let before = self.before.longest_step.filter(|_| !is_known);
        // Before the second step has ended, a host that runs ahead has measured only the launch.
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
