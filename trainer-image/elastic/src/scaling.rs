//! Batch and learning rate that follow the number of workers (`elastic.onScale: ScaleBatch`).
//!
//! The settings apply to the reference number of workers and are scaled: with W workers the batch
//! is `G·W/reference`, and the rate follows the batch by a rule. The rate changes gradually over
//! several steps, as in Goyal et al. (2017), whose warm-up begins at the rate of the small batch.
//! Only a new generation changes the batch. If the batch also grows at some epochs, the batch of
//! the present workers grows by the same factor, and the rate does not follow that growth.

use roundhouse_contract::{RateRule, ScaleBatch};

use crate::data_schedule::DataSchedule;
use crate::numerics::Skips;
use crate::training_position::{BatchPace, TrainingPosition};

/// How a training reacts to a change of its number of workers. It is constant for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scaling {
    settings: Option<ScaleBatch>,
    num_samples: u64,
    reference_batch: u64,
}

impl Scaling {
    /// Creates the rule. With `None` the batch is that of the data schedule for
    /// any number of workers.
    #[must_use]
    pub const fn new(settings: Option<ScaleBatch>, data_schedule: &DataSchedule) -> Self {
        Self {
            settings,
            num_samples: data_schedule.num_samples(),
            reference_batch: data_schedule.global_batch(),
        }
    }

    /// Whether the batch follows the number of workers.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.settings.is_some()
    }

    /// Returns the position before the first step.
    #[must_use]
    pub const fn start(&self) -> TrainingPosition {
        TrainingPosition {
            step: 0,
            samples: 0,
            pace: BatchPace {
                batch: self.reference_batch,
                from_factor: 1.0,
                since_step: 0,
            },
            skips: Skips::NONE,
            loss_scale: None,
        }
    }

    /// Samples per step of this many workers in the first epoch: at least 1, at most the data set.
    #[must_use]
    pub fn batch(&self, workers: u32) -> u64 {
        let Some(settings) = self.settings else {
            return self.reference_batch;
        };
        scaled(
            self.reference_batch,
            workers,
            settings.reference_replicas,
            self.num_samples,
        )
    }

    /// Returns the position with which this many workers continue.
    #[must_use]
    pub fn rescale(&self, position: TrainingPosition, workers: u32) -> TrainingPosition {
        let batch = self.batch(workers);
        if batch == position.pace.batch {
            return position;
        }
        let pace = BatchPace {
            batch,
            from_factor: self.factor_at(&position.pace, position.step),
            since_step: position.step,
        };
        TrainingPosition { pace, ..position }
    }

    /// Returns the factor of the learning rate for the next step.
    #[must_use]
    pub fn factor(&self, position: &TrainingPosition) -> f64 {
        self.factor_at(&position.pace, position.step + 1)
    }

    /// Returns the factor for a step. It reaches the batch's own factor with the last
    /// step of the warm-up.
    fn factor_at(&self, pace: &BatchPace, step: u64) -> f64 {
        let Some(settings) = self.settings else {
            return 1.0;
        };
        let ratio = pace.batch as f64 / self.reference_batch as f64;
        let own = match settings.rule {
            RateRule::Linear => ratio,
            RateRule::SquareRoot => ratio.sqrt(),
        };
        let since = step.saturating_sub(pace.since_step);
        let warmup_steps = u64::from(settings.warmup_steps);
        if since == 0 {
            pace.from_factor
        } else if since >= warmup_steps {
            own
        } else {
            pace.from_factor + (own - pace.from_factor) * (since as f64 / warmup_steps as f64)
        }
    }
}

/// Computes `batch · workers / reference`, rounded, at least 1 and at most `num_samples`.
#[must_use]
pub fn scaled(batch: u64, workers: u32, reference: u32, num_samples: u64) -> u64 {
    let reference = u128::from(reference.max(1));
    let samples = (u128::from(batch) * u128::from(workers) + reference / 2) / reference;
    u64::try_from(samples)
        .unwrap_or(u64::MAX)
        .clamp(1, num_samples.max(1))
}

#[cfg(test)]
mod tests;
