//! Whether one worker of a generation holds the others up. All wait for the slowest, so the length of a step
//! tells nothing; what a rank spends on its own part of it does. Nothing here influences training: the
//! operator may let that worker go first when fewer are wanted.

use crate::micro::micro_batches;

/// Steps over which workers are judged, all of one generation.
const WINDOW: usize = 20;
/// A straggler takes so many times as long as the others.
const FACTOR: f64 = 1.5;
/// And so much longer: on steps of a few milliseconds the factor alone is noise.
const MARGIN_SECONDS: f64 = 0.005;

/// A worker that is much slower than the others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Straggler {
    /// Its place in the generation.
    pub node_rank: u32,
    /// Median of its own time of a step.
    pub own_seconds: f64,
    /// What the others take, in the middle.
    pub others_seconds: f64,
}

impl Straggler {
    /// How many times as long as the others it takes.
    #[must_use]
    pub fn factor(&self) -> f64 {
        self.own_seconds / self.others_seconds
    }
}

/// The ranks' own times of the last steps of one generation.
#[derive(Clone, Debug)]
pub struct StepTimes {
    procs_per_worker: usize,
    /// By step, then by rank.
    steps: Vec<Vec<f64>>,
    unevenness: f64,
    found: Option<Straggler>,
}

impl StepTimes {
    /// None yet, of workers with so many processes.
    #[must_use]
    pub fn new(procs_per_worker: u32) -> Self {
        Self {
            procs_per_worker: procs_per_worker.max(1) as usize,
            steps: Vec::new(),
            unevenness: 1.0,
            found: None,
        }
    }

    /// Another generation: what was known of the last one's ranks is nothing to it.
    pub fn begin(&mut self) {
        self.steps.clear();
        self.unevenness = 1.0;
        self.found = None;
    }

    /// Adds a step: the ranks' own seconds in it, and how unevenly it was split ([`unevenness`]; `None`:
    /// some had nothing to do, and it does not count). Nor does one in which a rank has no time to tell.
    pub fn add(&mut self, own_seconds: &[f64], unevenness: Option<f64>) {
        let Some(unevenness) = unevenness else { return };
        if own_seconds.iter().any(|seconds| *seconds <= 0.0) {
            return;
        }
        self.unevenness = self.unevenness.max(unevenness);
        self.steps.push(own_seconds.to_vec());
        if self.steps.len() >= WINDOW {
            self.found = self.judge();
            self.steps.clear();
            self.unevenness = 1.0;
        }
    }

    /// The straggler of the last full window; there is at most one.
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
        let (node_rank, own_seconds) = (0..)
            .zip(workers.iter().copied())
            .max_by(|(_, left), (_, right)| left.total_cmp(right))?;
        let others = (0..).zip(&workers).filter(|(other, _)| *other != node_rank);
        let others_seconds = median(others.map(|(_, seconds)| *seconds).collect())?;
        // Larger parts may take so much longer.
        let excused = others_seconds * self.unevenness;
        let is_slow = own_seconds >= excused * FACTOR && own_seconds >= excused + MARGIN_SECONDS;
        is_slow.then_some(Straggler {
            node_rank,
            own_seconds,
            others_seconds,
        })
    }
}

/// How many times as much as another one a rank may have to do in a step, in samples or in passes, whichever
/// is more; `None` if some have no sample at all.
#[must_use]
pub fn unevenness(num_samples: u64, world_size: u32, micro_batch_size: Option<u32>) -> Option<f64> {
    let world_size = u64::from(world_size.max(1));
    let (fewest, most) = (num_samples / world_size, num_samples.div_ceil(world_size));
    let num_passes = |samples| micro_batches(&(0..samples), micro_batch_size).len();
    let samples = most as f64 / fewest as f64;
    let passes = num_passes(most) as f64 / num_passes(fewest) as f64;
    (fewest > 0).then_some(samples.max(passes))
}

/// The middle value, or what is halfway between the two in the middle; `None` of nothing.
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
mod tests {
    use super::*;

    /// Who is found after a window of steps of these milliseconds.
    fn found(procs: u32, milliseconds: &[f64], unevenness: f64) -> Option<u32> {
        let mut times = StepTimes::new(procs);
        let seconds: Vec<f64> = milliseconds.iter().map(|it| it / 1_000.0).collect();
        for _ in 0..WINDOW {
            assert_eq!(times.straggler(), None, "judged before the window is full");
            times.add(&seconds, Some(unevenness));
        }
        times.straggler().map(|it| it.node_rank)
    }

    #[test]
    fn one_worker_is_a_straggler_or_none_is() {
        // Processes per worker, milliseconds of each rank, unevenness, node rank.
        type Case<'a> = (&'a str, u32, &'a [f64], f64, Option<u32>);
        let cases: [Case<'_>; 14] = [
            ("whoever is alone is none", 1, &[50.0], 1.0, None),
            ("all are alike", 1, &[20.0, 21.0, 19.0], 1.0, None),
            ("one of three is slow", 1, &[20.0, 46.0, 20.0], 1.0, Some(1)),
            ("rank 0 can be it", 1, &[46.0, 20.0, 20.0], 1.0, Some(0)),
            ("one of two is slow", 1, &[20.0, 46.0], 1.0, Some(1)),
            (
                "of two slow ones the slowest",
                1,
                &[20.0, 40.0, 41.0, 20.0, 20.0],
                1.0,
                Some(2),
            ),
            (
                "where most are slow nobody is",
                1,
                &[40.0, 20.0, 41.0, 40.0],
                1.0,
                None,
            ),
            (
                "a little slower is not slow",
                1,
                &[20.0, 29.0, 20.0],
                1.0,
                None,
            ),
            ("just slow enough", 1, &[20.0, 30.0, 20.0], 1.0, Some(1)),
            (
                "noise on tiny steps accuses nobody",
                1,
                &[0.5, 5.0, 0.5],
                1.0,
                None,
            ),
            (
                "two samples instead of one take twice as long",
                1,
                &[20.0, 40.0],
                2.0,
                None,
            ),
            ("but not four times as long", 1, &[20.0, 80.0], 2.0, Some(1)),
            (
                "all processes of a worker are slow",
                2,
                &[20.0, 20.0, 46.0, 45.0],
                1.0,
                Some(1),
            ),
            (
                "one process makes its worker slow",
                2,
                &[20.0, 46.0, 20.0, 20.0],
                1.0,
                Some(0),
            ),
        ];
        for (name, procs, milliseconds, unevenness, expected) in cases {
            assert_eq!(found(procs, milliseconds, unevenness), expected, "{name}");
        }
    }

    #[test]
    fn the_middle_of_the_window_counts_and_not_its_worst_step() {
        let mut times = StepTimes::new(1);
        for step in 0..WINDOW {
            let hiccup = if step % 4 == 0 { 2.0 } else { 0.02 };
            times.add(&[0.02, hiccup], Some(1.0));
        }
        assert_eq!(times.straggler(), None);
    }

    #[test]
    fn the_factor_is_told_and_who_recovers_is_one_no_more() {
        let mut times = StepTimes::new(1);
        let add = |times: &mut StepTimes, seconds: f64, steps: usize| {
            (0..steps).for_each(|_| times.add(&[0.02, seconds, 0.02], Some(1.0)));
        };
        add(&mut times, 0.046, WINDOW);
        let factor = times.straggler().unwrap().factor();
        assert!((factor - 2.3).abs() < 1e-9, "{factor}");
        add(&mut times, 0.02, WINDOW - 1);
        assert!(times.straggler().is_some(), "the last window still counts");
        add(&mut times, 0.02, 1);
        assert_eq!(times.straggler(), None);
        add(&mut times, 0.046, WINDOW);
        times.begin();
        assert_eq!(times.straggler(), None, "another generation");
    }

    #[test]
    fn steps_in_which_somebody_has_nothing_to_tell_do_not_count() {
        let mut times = StepTimes::new(1);
        for _ in 0..WINDOW {
            times.add(&[0.02, 0.0], Some(1.0));
            times.add(&[0.02, 0.2], None);
        }
        times.add(&[0.02, 0.2], Some(1.0));
        assert_eq!((times.steps.len(), times.straggler()), (1, None));
    }

    #[test]
    fn uneven_is_what_may_take_longer() {
        for (samples, world, micro, expected) in [
            (64, 2, None, Some(1.0)),
            (64, 3, None, Some(22.0 / 21.0)),
            (3, 2, None, Some(2.0)),
            // 32 samples are one pass, 33 are two.
            (65, 2, Some(32), Some(2.0)),
            (2, 3, None, None),
        ] {
            assert_eq!(unevenness(samples, world, micro), expected, "{samples}");
        }
    }
}
