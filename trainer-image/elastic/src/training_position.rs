//! How far a training is, and the batch with which it continues.

use serde::{Deserialize, Serialize};

use crate::numerics::{LossScale, Skips};

/// Size of the steps, and the learning rate factor at the last change of the size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BatchPace {
    /// Samples per step in the first epoch.
    /// [`DataSchedule::batch_size`](crate::DataSchedule::batch_size) multiplies it by the growth.
    pub batch: u64,
    /// Factor of the learning rate before the batch changed to this size.
    pub from_factor: f64,
    /// Number of committed steps when the batch changed to this size.
    pub since_step: u64,
}

/// Progress of a training: the part of its state that is not in tensors. It is the
/// same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainingPosition {
    /// Number of committed steps.
    pub step: u64,
    /// Number of samples of these steps, over all epochs.
    pub samples: u64,
    /// Batch of the next step.
    pub pace: BatchPace,
    /// Steps that were committed without an update.
    pub skips: Skips,
    /// Factor of the loss in the next step; `None` without loss scaling.
    pub loss_scale: Option<LossScale>,
}

impl TrainingPosition {
    /// Length of [`Self::to_bytes`] in bytes.
    pub const NUM_BYTES: usize = 9 * 8;

    /// Returns the position after another committed step.
    #[must_use]
    pub const fn after(self, num_samples: u64) -> Self {
        Self {
            step: self.step + 1,
            samples: self.samples + num_samples,
            ..self
        }
    }

    /// Serializes the position for a rank that lacks it.
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
        // A scale of 0 represents `None`.
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

    /// Parses [`Self::to_bytes`] and returns the bytes that follow it; `None` if there are too few.
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
