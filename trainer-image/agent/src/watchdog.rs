//! When a process counts as hung. Pure: what the processes last said and the time go in, a stall
//! comes out.
//!
//! A sign of progress is any change of phase, generation or step. For a process that loads or saves a checkpoint it is
//! any byte of it, too, but not in training, where a save must not hide a hang. How long may pass without one is
//! learned from the longest span seen in the same phase ([`limits`]). A process that a signal has stopped is not busy, so it is given
//! no longer than the least of these limits. Time counts only while the
//! watchdog itself looks: what passes between two looks is capped, so that a suspended machine or a
//! stopped agent does not count a process as hung.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use roundhouse_contract::{Phase, RankStatus, Reason, TerminationMessage};

pub mod limits;

pub use limits::{Limits, Policy};

/// Time between two looks.
pub const INTERVAL: Duration = Duration::from_millis(500);
/// Most time that counts between two looks.
const MOST_BETWEEN_LOOKS: Duration = Duration::from_secs(2);

/// What is seen of a process that runs.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Which.
    pub local_rank: u32,
    /// What it said last.
    pub status: Option<RankStatus>,
    /// Whether a signal has stopped it.
    pub is_stopped: bool,
}

/// A process that makes no progress.
#[derive(Clone, Debug, PartialEq)]
pub struct Stall {
    /// Which.
    pub local_rank: u32,
    /// For how long.
    pub idle: Duration,
    /// Whether a signal has stopped it for as long.
    pub is_stopped: bool,
    /// The longest span of this phase before, if there was one.
    pub longest: Option<Duration>,
    /// What it said last.
    pub status: Option<RankStatus>,
}

/// Watches the processes of a worker.
#[derive(Debug)]
pub struct Watchdog {
    limits: Limits,
    looked_at: Option<Instant>,
    watched: BTreeMap<u32, Watched>,
}

/// What is known of one process.
#[derive(Debug, Default)]
struct Watched {
    status: Option<RankStatus>,
    idle: Duration,
    stopped: Duration,
    spans: Spans,
}

/// Longest spans between two signs of progress, by phase.
#[derive(Debug, Default)]
struct Spans {
    /// In this generation.
    now: BTreeMap<&'static str, Duration>,
    /// In those before: another world size makes other steps.
    before: BTreeMap<&'static str, Duration>,
}

impl Watchdog {
    /// Knows nothing yet.
    #[must_use]
    pub const fn new(limits: Limits) -> Self {
        Self {
            limits,
            looked_at: None,
            watched: BTreeMap::new(),
        }
    }

    /// Looks at all processes that run; the one that has been idle longest past its limit.
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

    /// The time so far says nothing of the processes: they could not tell what they do.
    pub fn excuse_all(&mut self) {
        for watched in self.watched.values_mut() {
            watched.idle = Duration::ZERO;
            watched.stopped = Duration::ZERO;
        }
    }

    /// The processes are about to be started anew: nothing that they said counts any more.
    pub fn forget(&mut self) {
        self.watched.clear();
    }

    /// One process is about to be started anew.
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
        // What a process has asked for once says nothing of what is usual.
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
        // Whatever it would do: it cannot answer its peers, and they would wait for it in each generation.
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

/// How long what a process does now may take, if it says so: its peers, which wait as long, give up first.
fn patience(status: Option<&RankStatus>) -> Option<Duration> {
    let seconds = status.map(|status| status.patience_seconds);
    let seconds = seconds.filter(|seconds| *seconds > 0)?;
    Some(Duration::from_secs(seconds) + limits::MARGIN)
}

/// Who has said nothing yet is preparing.
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
        Phase::Done => "Done",
    }
}

impl Stall {
    /// What the worker ends with.
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
            || "it has said nothing yet".to_owned(),
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

/// `43 s`, or `1.2 s` where that matters.
fn seconds(span: Duration) -> String {
    if span >= Duration::from_secs(10) {
        return format!("{} s", span.as_secs());
    }
    format!("{:.1} s", span.as_secs_f64())
}

#[cfg(test)]
mod tests;
