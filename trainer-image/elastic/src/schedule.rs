//! The learning rate as a function of committed samples, so that it does not depend on the number
//! of workers.

use roundhouse_contract::trainer::Schedule;

use crate::data_schedule::DataSchedule;

mod shape;
#[cfg(test)]
mod tests;

use shape::Shape;

/// The learning rate over one training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateSchedule {
    shape: Shape,
    base_rate: f64,
    samples_per_step: f64,
    warmup_samples: f64,
    total_samples: f64,
    samples_per_epoch: f64,
}

impl RateSchedule {
    /// Creates the schedule of a configuration over a data schedule. `base_rate` is the full rate.
    #[must_use]
    pub fn new(schedule: &Schedule, base_rate: f64, data_schedule: &DataSchedule) -> Self {
        let samples_after = |steps| data_schedule.committed_samples(steps) as f64;
        Self {
            shape: Shape::of(schedule),
            base_rate,
            samples_per_step: samples_after(1),
            warmup_samples: samples_after(u64::from(schedule.warmup_steps)),
            total_samples: samples_after(data_schedule.total_steps()),
            samples_per_epoch: data_schedule.num_samples() as f64,
        }
    }

    /// Returns the rate of the step that starts after this many committed samples.
    ///
    /// Warm-up rises linearly and reaches the full rate with its last step (Goyal et al., 2017).
    /// `linear`, `cosine` and `polynomial` start there and would reach their lowest value one
    /// step after the last; the same holds for the decay of `wsd`. `step` counts its epochs from
    /// the beginning of training.
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
        let progress_since = |start: f64| {
            let span = (self.total_samples - start).max(1.0);
            ((at - start) / span).clamp(0.0, 1.0)
        };
        match self.shape {
            Shape::Constant => 1.0,
            Shape::Falling { curve, min_factor } => {
                curve.factor(progress_since(self.warmup_samples), min_factor)
            }
            Shape::Step { step_epochs, gamma } => {
                gamma.powf((at / self.samples_per_epoch / step_epochs).floor())
            }
            Shape::StableThenFalling {
                fraction,
                curve,
                min_factor,
            } => {
                let stable = self.total_samples * (1.0 - fraction);
                curve.factor(progress_since(stable.max(self.warmup_samples)), min_factor)
            }
        }
    }
}
