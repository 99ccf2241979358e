//! Decides when a process counts as hung, from the last statuses of the processes and the time.
//!
//! Progress is any change of phase, generation or step. For a process that loads or saves a
//! checkpoint, any byte of it counts too. In training it does not, so that a save cannot hide a
//! hang. The limit derives from the longest time without progress in the same phase ([`limits`]). A
//! process that a signal has stopped is not busy, so it gets only the shortest of these limits.
//! Time counts only while the watchdog runs: the time between two checks is capped, so that a
//! process does not count as hung after the machine was suspended or the agent was stopped.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use roundhouse_contract::{Phase, RankStatus, Reason, TerminationMessage};

pub mod limits;

pub use limits::{Limits, Policy};

/// Time between two checks.
pub const INTERVAL: Duration = Duration::from_millis(500);
/// Maximum time that counts between two checks.
const MOST_BETWEEN_LOOKS: Duration = Duration::from_secs(2);

/// The observation of a running process.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Local rank of the process.
    pub local_rank: u32,
    /// Last status of the process.
    pub status: Option<RankStatus>,
    /// Whether a signal has stopped the process.
    pub is_stopped: bool,
}

/// A process that makes no progress.
#[derive(Clone, Debug, PartialEq)]
pub struct Stall {
    /// Local rank of the process.
    pub local_rank: u32,
    /// Time without progress so far.
    pub idle: Duration,
    /// Whether a signal has stopped the process for this time.
    pub is_stopped: bool,
    /// The longest time without progress in this phase before, if there was one.
    pub longest: Option<Duration>,
    /// Last status of the process.
    pub status: Option<RankStatus>,
}

/// Watches the processes of a worker.
#[derive(Debug)]
pub struct Watchdog {
    limits: Limits,
    looked_at: Option<Instant>,
    watched: BTreeMap<u32, Watched>,
}

/// State of the watchdog for one process.
#[derive(Debug, Default)]
struct Watched {
    status: Option<RankStatus>,
    idle: Duration,
    stopped: Duration,
    spans: Spans,
}

/// Longest times without progress, by phase.
#[derive(Debug, Default)]
struct Spans {
    /// Times in this generation.
    now: BTreeMap<&'static str, Duration>,
    /// Times in earlier generations. With another world size, steps take another time.
    before: BTreeMap<&'static str, Duration>,
}

impl Watchdog {
    /// Creates a watchdog that has not observed any process.
    #[must_use]
    pub const fn new(limits: Limits) -> Self {
        Self {
            limits,
            looked_at: None,
            watched: BTreeMap::new(),
        }
    }

    /// Checks all running processes. Returns the one that has exceeded its limit
    /// for the longest time.
    pub fn look(
        &mut self,
        now: Instant,
        processes: impl IntoIterator<Item = Seen>,
    ) -> Option<Stall> {
        let passed = self.looked_at.replace(now).map_or(Duration::ZERO, |then| {
            now.saturating_duration_since(then).min(MOST_BETWEEN_LOOKS)
        });
        let mut stalls = Vec::new();
        for Seen {
            local_rank,
            status,
            is_stopped,
        } in processes
        {
            let watched = self.watched.entry(local_rank).or_default();
            watched.see(status, passed);
            watched.stopped = if is_stopped {
                watched.stopped + passed
            } else {
                Duration::ZERO
            };
            stalls.extend(watched.stall(local_rank, &self.limits));
        }
        stalls.into_iter().max_by_key(|stall| stall.idle)
    }

    /// The longest step of the processes that are watched; zero before the first.
    #[must_use]
    pub fn longest_step(&self) -> Duration {
        let spans = self.watched.values().map(|watched| &watched.spans);
        let steps = spans.flat_map(|spans| [&spans.now, &spans.before]);
        let longest = steps.filter_map(|it| it.get(name(Phase::Training)));
        longest.max().copied().unwrap_or_default()
    }

    /// Restarts the time of all processes, because they could not report.
    pub fn excuse_all(&mut self) {
        for watched in self.watched.values_mut() {
            watched.idle = Duration::ZERO;
            watched.stopped = Duration::ZERO;
        }
    }

    /// Drops all observations, because the processes are restarted.
    pub fn forget(&mut self) {
        self.watched.clear();
    }

    /// Drops the observations of one process, because it is restarted.
    pub fn forget_one(&mut self, local_rank: u32) {
        self.watched.remove(&local_rank);
    }
}

impl Watched {
    fn see(&mut self, status: Option<RankStatus>, passed: Duration) {
        self.idle += passed;
        if key(self.status.as_ref()) == key(status.as_ref()) {
            return;
        }
        let span = std::mem::take(&mut self.idle);
        // A time that a process has asked for once says nothing about usual times.
        if patience(self.status.as_ref()).is_none() {
            self.spans.learn(phase_of(self.status.as_ref()), span);
        }
        if generation(self.status.as_ref()) != generation(status.as_ref()) {
            self.spans.begin_generation();
        }
        self.status = status;
    }

    fn stall(&self, local_rank: u32, limits: &Limits) -> Option<Stall> {
        let phase = phase_of(self.status.as_ref());
        let longest = self.spans.now.get(name(phase)).copied();
        let before = self.spans.before.get(name(phase)).copied();
        let limit = limits.of(phase, longest, before);
        let patience = patience(self.status.as_ref()).unwrap_or_default();
        let is_idle = limit.is_some_and(|limit| self.idle > limit.max(patience));
        // A stopped process cannot answer its peers, which would wait for it in each generation.
        let is_stopped = limits.policy != Policy::Off && self.stopped > limits::FLOOR;
        (is_stopped || is_idle).then(|| Stall {
            local_rank,
            idle: if is_stopped { self.stopped } else { self.idle },
            is_stopped,
            longest,
            status: self.status.clone(),
        })
    }
}

impl Spans {
    fn learn(&mut self, phase: Phase, span: Duration) {
        let longest = self.now.entry(name(phase)).or_default();
        *longest = span.max(*longest);
    }

    fn begin_generation(&mut self) {
        for (phase, span) in std::mem::take(&mut self.now) {
            let longest = self.before.entry(phase).or_default();
            *longest = span.max(*longest);
        }
    }
}

fn key(status: Option<&RankStatus>) -> Option<(Phase, u64, u64, u64)> {
    status.map(|status| {
        // While a generation forms, a checkpoint is read and the state is sent.
        let moves_bytes = matches!(
            status.phase,
            Phase::Preparing | Phase::Forming | Phase::Saving
        );
        let moves = if moves_bytes { status.volume_moves } else { 0 };
        (status.phase, status.generation, status.step, moves)
    })
}

fn generation(status: Option<&RankStatus>) -> u64 {
    status.map_or(0, |status| status.generation)
}

/// The time that a process needs for its present activity, if it reports one. The margin lets its
/// peers, which wait equally long, give up first.
fn patience(status: Option<&RankStatus>) -> Option<Duration> {
    let seconds = status.map(|status| status.patience_seconds);
    let seconds = seconds.filter(|seconds| *seconds > 0)?;
    Some(Duration::from_secs(seconds) + limits::MARGIN)
}

/// Phase of the status. A process without a status is preparing.
fn phase_of(status: Option<&RankStatus>) -> Phase {
    status.map_or(Phase::Preparing, |status| status.phase)
}

const fn name(phase: Phase) -> &'static str {
    match phase {
        Phase::Preparing => "Preparing",
        Phase::Lobby => "Lobby",
        Phase::Stranded => "Stranded",
        Phase::Forming => "Forming",
        Phase::Training => "Training",
        Phase::Evaluating => "Evaluating",
        Phase::Saving => "Saving",
        Phase::SavingPart => "SavingPart",
        Phase::Done => "Done",
    }
}

impl Stall {
    /// Returns the termination message of the worker.
    #[must_use]
    pub fn message(&self) -> TerminationMessage {
        let status = self.status.as_ref();
        TerminationMessage {
            reason: Reason::Stalled,
            rank: status.and_then(|status| status.rank),
            generation: generation(status),
            step: status.map_or(0, |status| status.step),
            message: self.sentence(),
            progress: None,
        }
    }

    fn sentence(&self) -> String {
        let (phase, idle) = (phase_of(self.status.as_ref()), seconds(self.idle));
        let what = match (phase, self.longest) {
            _ if self.is_stopped => format!("a signal has stopped it for {idle}"),
            (Phase::Training, Some(longest)) => {
                format!(
                    "no step for {idle} (longest step so far {})",
                    seconds(longest)
                )
            }
            (Phase::Training, None) => {
                format!("no first step of this generation for {idle}")
            }
            (Phase::Evaluating, Some(longest)) => {
                format!(
                    "evaluating for {idle} (longest so far {})",
                    seconds(longest)
                )
            }
            _ => format!("no progress for {idle}"),
        };
        let last = self.status.as_ref().map_or_else(
            || "no status so far".to_owned(),
            |status| {
                let RankStatus {
                    phase: _,
                    rank: _,
                    generation,
                    step,
                    forming: _,
                    volume_moves: _,
                    patience_seconds: _,
                    progress: _,
                } = status;
                format!(
                    "last: step {step} of generation {generation}, phase {}",
                    name(phase)
                )
            },
        );
        format!("{what}; {last}")
    }
}

/// Formats a time as `43 s`, or as `1.2 s` below 10 s.
fn seconds(span: Duration) -> String {
    if span >= Duration::from_secs(10) {
        return format!("{} s", span.as_secs());
    }
    format!("{:.1} s", span.as_secs_f64())
}

#[cfg(test)]
mod tests;
