//! How batch and learning rate follow the number of workers (`elastic.onScale: ScaleBatch`).
//!
//! What is meant for the reference number of workers is multiplied: with W workers the batch is
//! `G·W/reference`, and the rate follows the batch by a rule. The rate goes to its new value over
//! some steps, as in Goyal et al. (2017), whose gradual warm-up begins at the rate of the small
//! batch. Only a new generation changes the batch. If the batch also grows at some epochs, the
//! workers' batch grows by the same factor, and the rate does not follow that growth.

use roundhouse_contract::{RateRule, ScaleBatch};
use serde::{Deserialize, Serialize};

use crate::course::Course;
use crate::numerics::{LossScale, Skips};

/// How large steps are, and from where the rate comes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pace {
    /// Samples of a step in the first epoch. Growth of the batch multiplies it: see
    /// [`Course::batch_size`].
    pub batch: u64,
    /// What the rate was multiplied by before the batch became this one.
    pub from_factor: f64,
    /// Committed steps when it did.
    pub since_step: u64,
}

/// How far a training is: what every rank holds of it besides tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mark {
    /// Committed steps.
    pub step: u64,
    /// Samples of them, over all epochs.
    pub samples: u64,
    /// How it continues.
    pub pace: Pace,
    /// Steps that were committed without an update.
    pub skips: Skips,
    /// What the loss of the next step is multiplied by; `None` without loss scaling.
    pub loss_scale: Option<LossScale>,
}

/// How a training answers to a change of its workers. A constant of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scaling {
    settings: Option<ScaleBatch>,
    num_samples: u64,
    reference_batch: u64,
}

impl Mark {
    /// Bytes of [`Self::to_bytes`].
    pub const NUM_BYTES: usize = 9 * 8;

    /// Another step is committed.
    #[must_use]
    pub const fn after(self, num_samples: u64) -> Self {
        Self {
            step: self.step + 1,
            samples: self.samples + num_samples,
            ..self
        }
    }

    /// For a rank that lacks it.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let Self {
            step,
            samples,
            pace:
                Pace {
                    batch,
                    from_factor,
                    since_step,
                },
            skips: Skips { total, in_a_row },
            loss_scale,
        } = *self;
        // A factor of 0 stands for none.
        let (scale, clean_steps) = loss_scale.map_or((0.0, 0), |it| (it.scale, it.clean_steps));
        let numbers = [
            step,
            samples,
            batch,
            from_factor.to_bits(),
            since_step,
            total,
            in_a_row,
            scale.to_bits(),
            clean_steps,
        ];
        numbers.iter().flat_map(|n| n.to_le_bytes()).collect()
    }

    /// The inverse of [`Self::to_bytes`], and the bytes that follow; `None` for too few.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (own, rest) = bytes.split_at_checked(Self::NUM_BYTES)?;
        let (numbers, _) = own.as_chunks();
        let &[
            step,
            samples,
            batch,
            from_factor,
            since_step,
            total,
            in_a_row,
            scale,
            clean_steps,
        ] = numbers
        else {
            return None;
        };
        let loss_scale = LossScale {
            scale: f64::from_bits(u64::from_le_bytes(scale)),
            clean_steps: u64::from_le_bytes(clean_steps),
        };
        let mark = Self {
            step: u64::from_le_bytes(step),
            samples: u64::from_le_bytes(samples),
            pace: Pace {
                batch: u64::from_le_bytes(batch),
                from_factor: f64::from_bits(u64::from_le_bytes(from_factor)),
                since_step: u64::from_le_bytes(since_step),
            },
            skips: Skips {
                total: u64::from_le_bytes(total),
                in_a_row: u64::from_le_bytes(in_a_row),
            },
            loss_scale: Some(loss_scale).filter(|it| it.scale > 0.0),
        };
        Some((mark, rest))
    }
}

impl Scaling {
    /// `None`: the batch of the course, whoever trains.
    #[must_use]
    pub const fn new(settings: Option<ScaleBatch>, course: &Course) -> Self {
        Self {
            settings,
            num_samples: course.num_samples(),
            reference_batch: course.global_batch(),
        }
    }

    /// Whether the batch can be another one than the course's.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.settings.is_some()
    }

    /// A training that has not begun.
    #[must_use]
    pub const fn start(&self) -> Mark {
        Mark {
            step: 0,
            samples: 0,
            pace: Pace {
                batch: self.reference_batch,
                from_factor: 1.0,
                since_step: 0,
            },
            skips: Skips::NONE,
            loss_scale: None,
        }
    }

    /// Samples of a step of so many workers in the first epoch: at least 1, at most the data.
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

    /// The mark with which so many workers continue.
    #[must_use]
    pub fn go_on(&self, mark: Mark, workers: u32) -> Mark {
        let batch = self.batch(workers);
        if batch == mark.pace.batch {
            return mark;
        }
        let pace = Pace {
            batch,
            from_factor: self.factor_at(&mark.pace, mark.step),
            since_step: mark.step,
        };
        Mark { pace, ..mark }
    }

    /// What the rate of the next step is multiplied by.
    #[must_use]
    pub fn factor(&self, mark: &Mark) -> f64 {
        self.factor_at(&mark.pace, mark.step + 1)
    }

    /// The factor of a step: with the last of the warm-up it is the batch's own.
    fn factor_at(&self, pace: &Pace, step: u64) -> f64 {
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

/// `batch · workers / reference`, rounded, at least 1 and at most `num_samples`.
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
