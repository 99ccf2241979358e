//! The learning rate as a function of committed samples, so that it does not notice how many
//! workers there are.

use roundhouse_contract::trainer::{Schedule, ScheduleName};

use crate::course::Course;

/// A schedule over one training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateSchedule {
    shape: Shape,
    base_rate: f64,
    samples_per_step: f64,
    warmup_samples: f64,
    total_samples: f64,
    samples_per_epoch: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Shape {
    Constant,
    Cosine { min_factor: f64 },
    Step { step_epochs: f64, gamma: f64 },
}

impl RateSchedule {
    /// The schedule of a configuration over a course, around the full rate `base_rate`.
    #[must_use]
    pub fn new(schedule: &Schedule, base_rate: f64, course: &Course) -> Self {
        let Schedule {
            name,
            warmup_steps,
            min_factor,
            step_epochs,
            gamma,
        } = schedule;
        let shape = match name {
            ScheduleName::Constant => Shape::Constant,
            ScheduleName::Cosine => Shape::Cosine {
                min_factor: *min_factor,
            },
            ScheduleName::Step => Shape::Step {
                step_epochs: f64::from((*step_epochs).max(1)),
                gamma: *gamma,
            },
        };
        let samples_after = |steps| course.committed_samples(steps) as f64;
        Self {
            shape,
            base_rate,
            samples_per_step: samples_after(1),
            warmup_samples: samples_after(u64::from(*warmup_steps)),
            total_samples: samples_after(course.total_steps()),
            samples_per_epoch: course.num_samples() as f64,
        }
    }

    /// Rate of the step that starts after so many committed samples.
    ///
    /// Warm-up rises linearly and reaches the full rate with its last step (Goyal et al., 2017);
    /// the cosine starts there and would reach its lowest value one step after the last.
    #[must_use]
    pub fn rate(&self, committed_samples: u64) -> f64 {
        let at = committed_samples as f64;
        let warmup = if at < self.warmup_samples {
            ((at + self.samples_per_step) / self.warmup_samples).min(1.0)
        } else {
            1.0
        };
        self.base_rate * warmup * self.factor(at)
    }

    fn factor(&self, at: f64) -> f64 {
        match self.shape {
            Shape::Constant => 1.0,
            Shape::Cosine { min_factor } => {
                let span = (self.total_samples - self.warmup_samples).max(1.0);
                let done = ((at - self.warmup_samples) / span).clamp(0.0, 1.0);
                let half_cosine = f64::midpoint(1.0, (std::f64::consts::PI * done).cos());
                min_factor + (1.0 - min_factor) * half_cosine
            }
            Shape::Step { step_epochs, gamma } => {
                gamma.powf((at / self.samples_per_epoch / step_epochs).floor())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rates of a training of ten epochs of ten steps of ten samples.
    fn rates(change: impl FnOnce(&mut Schedule)) -> Vec<f64> {
        let mut schedule = Schedule::default();
        change(&mut schedule);
        let course = Course::of_epochs(100, 10, 10);
        let rates = RateSchedule::new(&schedule, 2.0, &course);
        (0..course.total_steps())
            .map(|step| rates.rate(course.committed_samples(step)))
            .collect()
    }

    fn assert_close(found: f64, expected: f64) {
        assert!(
            (found - expected).abs() < 1e-12,
            "{found} is not {expected}"
        );
    }

    #[test]
    fn a_constant_rate_stays() {
        assert!(rates(|_| {}).iter().all(|rate| (*rate - 2.0).abs() < 1e-12));
    }

    #[test]
    fn warm_up_rises_by_equal_parts_to_the_full_rate() {
        let rates = rates(|schedule| schedule.warmup_steps = 4);
        for (rate, expected) in rates.iter().zip([0.5, 1.0, 1.5, 2.0, 2.0]) {
            assert_close(*rate, expected);
        }
    }

    #[test]
    fn the_cosine_falls_from_the_end_of_warm_up_to_its_lowest_factor() {
        let rates = rates(|schedule| {
            schedule.name = ScheduleName::Cosine;
            schedule.warmup_steps = 20;
            schedule.min_factor = 0.1;
        });
        assert_close(rates[20], 2.0);
        assert_close(rates[60], 2.0 * (0.1 + 0.9 / 2.0));
        assert!(rates[99] > 0.2 && rates[99] < 0.202, "{}", rates[99]);
        assert!(rates[20..].windows(2).all(|pair| pair[1] < pair[0]));
    }

    #[test]
    fn a_step_schedule_drops_at_its_epochs() {
        let rates = rates(|schedule| {
            schedule.name = ScheduleName::Step;
            schedule.step_epochs = 3;
            schedule.gamma = 0.5;
        });
        for (step, expected) in [(0, 2.0), (29, 2.0), (30, 1.0), (60, 0.5), (99, 0.25)] {
            assert_close(rates[step], expected);
        }
    }

    #[test]
    fn a_warm_up_longer_than_training_never_reaches_the_full_rate() {
        let rates = rates(|schedule| schedule.warmup_steps = 200);
        assert_close(rates[99], 1.0);
    }
}
