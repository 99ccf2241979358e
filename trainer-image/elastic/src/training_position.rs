//! How far a training is, and the batch with which it continues.

use serde::{Deserialize, Serialize};

use crate::numerics::{LossScale, Skips};

/// How large steps are, and from where the rate comes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BatchPace {
    /// Samples of a step in the first epoch. Growth of the batch multiplies it: see
    /// [`DataSchedule::batch_size`](crate::DataSchedule::batch_size).
    pub batch: u64,
    /// What the rate was multiplied by before the batch became this one.
    pub from_factor: f64,
    /// Committed steps when it did.
    pub since_step: u64,
}

/// How far a training is: what every rank holds of it besides tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainingPosition {
    /// Committed steps.
    pub step: u64,
    /// Samples of them, over all epochs.
    pub samples: u64,
    /// How it continues.
    pub pace: BatchPace,
    /// Steps that were committed without an update.
    pub skips: Skips,
    /// What the loss of the next step is multiplied by; `None` without loss scaling.
    pub loss_scale: Option<LossScale>,
}

impl TrainingPosition {
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
                BatchPace {
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
        let position = Self {
            step: u64::from_le_bytes(step),
            samples: u64::from_le_bytes(samples),
            pace: BatchPace {
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
        Some((position, rest))
    }
}

#[cfg(test)]
mod tests;
