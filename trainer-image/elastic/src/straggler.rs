//! Detects one worker of a generation that holds up the others. All workers wait for the slowest,
//! so the duration of a step says nothing; the time that a rank spends on its own part does.
//! Stragglers do not change the training. The operator may remove the straggler first when it needs
//! fewer workers.

use crate::micro::micro_batches;

/// Number of steps over which workers are judged, all of one generation.
const WINDOW: usize = 20;
/// A straggler takes this many times as long as the others.
const FACTOR: f64 = 1.5;
/// A straggler also takes at least this much longer, because on steps of a few milliseconds the
/// factor alone is noise.
const MARGIN_SECONDS: f64 = 0.005;

/// A worker that is much slower than the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Straggler {
    /// Rank of the worker in the generation.
    pub node_rank: u32,
    /// Median of the worker's own time per step.
    pub compute_seconds: f64,
    /// Median of the other workers' medians.
    pub others_seconds: f64,
}

impl Straggler {
    /// Returns how many times as long as the others it takes.
    #[must_use]
    pub fn factor(&self) -> f64 {
        self.compute_seconds / self.others_seconds
    }
}

/// The times that ranks spent on their own parts of the last steps of one generation.
#[derive(Clone, Debug)]
pub struct StepTimes {
    procs_per_worker: usize,
    /// Seconds by step, then by rank.
    steps: Vec<Vec<f64>>,
    unevenness: f64,
    found: Option<Straggler>,
}

impl StepTimes {
    /// Creates an empty window for workers with this many processes.
    #[must_use]
    pub fn new(procs_per_worker: u32) -> Self {
        Self {
            procs_per_worker: procs_per_worker.max(1) as usize,
            steps: Vec::new(),
            unevenness: 1.0,
            found: None,
        }
    }

    /// Starts a new generation and drops the times of the last one, whose ranks were different.
    pub fn begin(&mut self) {
        self.steps.clear();
        self.unevenness = 1.0;
        self.found = None;
    }

    /// Adds a step: the seconds that each rank spent on its own part, and the unevenness of the
    /// parts ([`unevenness`]). A step does not count if the unevenness is `None`, because some
    /// ranks had no samples, or if a rank has no time to report.
    pub fn add(&mut self, compute_seconds: &[f64], unevenness: Option<f64>) {
        let Some(unevenness) = unevenness else { return };
        if compute_seconds.iter().any(|seconds| *seconds <= 0.0) {
            return;
        }
        self.unevenness = self.unevenness.max(unevenness);
        self.steps.push(compute_seconds.to_vec());
        if self.steps.len() >= WINDOW {
            self.found = self.judge();
            self.steps.clear();
            self.unevenness = 1.0;
        }
    }

    /// Returns the straggler of the last full window; there is at most one.
    #[must_use]
    pub const fn straggler(&self) -> Option<Straggler> {
        self.found
    }

    fn judge(&self) -> Option<Straggler> {
        let num_ranks = self.steps.iter().map(Vec::len).min()?;
        let of_rank = |rank: usize| median(self.steps.iter().map(|step| step[rank]).collect());
        let ranks: Vec<f64> = (0..num_ranks).filter_map(of_rank).collect();
        // A worker is as slow as the slowest of its processes.
        let slowest = |ranks: &[f64]| ranks.iter().copied().fold(0.0, f64::max);
        let workers: Vec<f64> = ranks.chunks(self.procs_per_worker).map(slowest).collect();
        let (node_rank, compute_seconds) = (0..)
            .zip(workers.iter().copied())
            .max_by(|(_, left), (_, right)| left.total_cmp(right))?;
        let others = (0..).zip(&workers).filter(|(other, _)| *other != node_rank);
        let others_seconds = median(others.map(|(_, seconds)| *seconds).collect())?;
        // A larger part may take longer in proportion.
        let excused = others_seconds * self.unevenness;
        let is_slow =
            compute_seconds >= excused * FACTOR && compute_seconds >= excused + MARGIN_SECONDS;
        is_slow.then_some(Straggler {
            node_rank,
            compute_seconds,
            others_seconds,
        })
    }
}

/// Returns how many times as much work one rank may have as another in a step, in samples or in
/// passes, whichever is more; `None` if some ranks have no samples.
#[must_use]
pub fn unevenness(num_samples: u64, world_size: u32, micro_batch_size: Option<u32>) -> Option<f64> {
    let world_size = u64::from(world_size.max(1));
    let (fewest, most) = (num_samples / world_size, num_samples.div_ceil(world_size));
    let num_passes = |samples| micro_batches(&(0..samples), micro_batch_size).len();
    let samples = most as f64 / fewest as f64;
    let passes = num_passes(most) as f64 / num_passes(fewest) as f64;
    (fewest > 0).then_some(samples.max(passes))
}

/// Returns the median; `None` for no values.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    if values.len() % 2 == 1 {
        return Some(upper);
    }
    values
        .get(middle - 1)
        .map(|lower| f64::midpoint(*lower, upper))
}

#[cfg(test)]
mod tests;
