//! Throughput, loss and shares of time over the last seconds. Numbers of single steps would vary
//! too much.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::StepReport;
use crate::sections::{Section, Sections};

/// Length of the window.
const WINDOW: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: Instant,
    num_samples: u64,
    loss: f64,
    duration: Duration,
    sections: Sections,
}

/// A sliding window over committed steps. The first step only starts the clock.
///
/// A window can have thousands of short steps, so values that are needed at each step are kept as
/// sums. The sums are of integers, so a removed entry leaves no rounding error.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    entries: VecDeque<Entry>,
    num_samples: u64,
    duration: Duration,
    spent: [Duration; Section::ALL.len()],
}

impl Meter {
    /// Adds a step that was committed at `at`.
    pub fn add(&mut self, report: &StepReport, at: Instant) {
        self.num_samples += report.num_samples;
        self.duration += report.duration;
        for section in Section::ALL {
            self.spent[section as usize] += report.sections.spent(section);
        }
        self.entries.push_back(Entry {
            at,
            num_samples: report.num_samples,
            loss: report.loss,
            duration: report.duration,
            sections: report.sections,
        });
        // Two entries stay, so that steps longer than the window also have a rate.
        while self.entries.len() > 2
            && let Some(oldest) = self
                .entries
                .pop_front_if(|entry| at.duration_since(entry.at) > WINDOW)
        {
            self.num_samples -= oldest.num_samples;
            self.duration -= oldest.duration;
            for section in Section::ALL {
                self.spent[section as usize] -= oldest.sections.spent(section);
            }
        }
    }

    /// Whether no step was added yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Samples per second of wall time; 0 before the second step.
    #[must_use]
    pub fn samples_per_second(&self) -> f64 {
        let (Some(first), Some(last)) = (self.entries.front(), self.entries.back()) else {
            return 0.0;
        };
        let seconds = last.at.duration_since(first.at).as_secs_f64();
        let num_samples = self.num_samples - first.num_samples;
        if seconds > 0.0 {
            num_samples as f64 / seconds
        } else {
            0.0
        }
    }

    /// Mean loss per sample over the steps with a finite loss; NaN if there is none. Iterates over
    /// the window.
    #[must_use]
    pub fn loss(&self) -> f64 {
        let finite = self.entries.iter().filter(|entry| entry.loss.is_finite());
        let (mut sum, mut num_samples) = (0.0, 0);
        for entry in finite {
            sum += entry.loss * entry.num_samples as f64;
            num_samples += entry.num_samples;
        }
        sum / num_samples as f64
    }

    /// Share of the wall time of steps that a section took, from 0 to 1; 0 before the first step.
    #[must_use]
    pub fn share(&self, section: Section) -> f64 {
        if self.duration.is_zero() {
            return 0.0;
        }
        let spent = self.spent[section as usize];
        (spent.as_secs_f64() / self.duration.as_secs_f64()).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use roundhouse_elastic::Skips;

    use super::*;

    fn step(num_samples: u64, loss: f64) -> StepReport {
        StepReport {
            step: 1,
            epoch: 0,
            num_samples,
            loss,
            gradient_norm: 1.0,
            learning_rate: 0.1,
            duration: Duration::from_millis(20),
            sections: Sections::default(),
            skips: Skips::NONE,
            loss_scale: None,
        }
    }

    #[test]
    fn only_the_window_counts() {
        let start = Instant::now();
        let mut meter = Meter::default();
        meter.add(&step(1_000, 9.0), start);
        assert!(meter.samples_per_second().abs() < f64::EPSILON);
        for second in 1..=10 {
            meter.add(&step(50, 2.0), start + Duration::from_secs(second));
        }
        assert!((meter.samples_per_second() - 50.0).abs() < 1e-9);
        assert!((meter.loss() - 2.0).abs() < 1e-9);
    }

    #[test]
    fn removed_entries_leave_no_rounding_error() {
        let (start, mut meter) = (Instant::now(), Meter::default());
        let at = |number: u64| start + Duration::from_millis(700) * u32::try_from(number).unwrap();
        let report = |number: u64| {
            let mut report = step(number, 1.0);
            report
                .sections
                .add(Section::Data, Duration::from_nanos(number));
            report
        };
        for number in 0..100 {
            meter.add(&report(number), at(number));
        }
        let mut fresh = Meter::default();
        for number in 97..100 {
            fresh.add(&report(number), at(number));
        }
        assert_eq!(meter.entries.len(), fresh.entries.len());
        assert_eq!(meter.num_samples, fresh.num_samples);
        assert_eq!((meter.duration, meter.spent), (fresh.duration, fresh.spent));
    }

    #[test]
    fn nonfinite_loss_is_left_out_of_the_mean() {
        let start = Instant::now();
        let mut meter = Meter::default();
        assert!(meter.loss().is_nan());
        meter.add(&step(10, f64::NAN), start);
        assert!(meter.loss().is_nan());
        meter.add(&step(10, 2.0), start);
        meter.add(&step(30, 1.0), start);
        assert!((meter.loss() - 1.25).abs() < 1e-9);
    }

    #[test]
    fn a_step_longer_than_the_window_has_a_rate() {
        let start = Instant::now();
        let mut meter = Meter::default();
        meter.add(&step(10, 1.0), start);
        meter.add(&step(100, 1.0), start + Duration::from_secs(10));
        assert!((meter.samples_per_second() - 10.0).abs() < 1e-9);
    }

    #[test]
    fn shares_cover_all_steps_of_the_window() {
        let start = Instant::now();
        let mut meter = Meter::default();
        assert!(meter.share(Section::Data).abs() < f64::EPSILON);
        for milliseconds in [1, 3] {
            let mut report = step(10, 1.0);
            report
                .sections
                .add(Section::Data, Duration::from_millis(milliseconds));
            meter.add(&report, start);
        }
        // 4 ms of 40 ms.
        assert!((meter.share(Section::Data) - 0.1).abs() < 1e-9);
        assert!(meter.share(Section::Communication).abs() < f64::EPSILON);
    }
}
