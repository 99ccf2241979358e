//! The course of a whole training: which samples belong to which step.
//!
//! An epoch of N samples is cut into batches of G; its last batch is smaller when G does not
//! divide N. So each sample is used exactly once per epoch. The position (epoch, cursor), where the
//! cursor counts samples consumed in the epoch, is a function of the committed samples; as long as G
//! stays the same these are a function of the number of committed steps. Nothing here depends on the
//! world size: should G follow it, that is [`crate::scaling`]'s.

use std::ops::Range;

use crate::scaling::Mark;

#[cfg(test)]
mod by_steps;

/// Where training is in the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Position {
    /// Epoch of the next step, from 0.
    pub epoch: u64,
    /// Samples of that epoch that committed steps have consumed.
    pub cursor: u64,
}

/// The samples of one step, as places in the epoch's permutation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Number of its step, from 1.
    pub step: u64,
    /// Epoch, from 0.
    pub epoch: u64,
    /// Places in the order of that epoch. Never empty.
    pub places: Range<u64>,
    /// Whether the epoch ends with this batch.
    pub ends_epoch: bool,
}

impl Batch {
    /// Samples of the batch, over all ranks.
    #[must_use]
    pub const fn num_samples(&self) -> u64 {
        self.places.end - self.places.start
    }
}

/// Data set size, batch size and length of a training. All at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Course {
    num_samples: u64,
    global_batch: u64,
    total_steps: u64,
}

impl Course {
    /// A training of so many steps.
    ///
    /// A number of 0 counts as 1, and a batch larger than the data set is the whole data set.
    #[must_use]
    pub fn of_steps(num_samples: u64, global_batch: u64, steps: u64) -> Self {
        let num_samples = num_samples.max(1);
        Self {
            num_samples,
            global_batch: global_batch.clamp(1, num_samples),
            total_steps: steps.max(1),
        }
    }

    /// A training of so many passes over the data.
    #[must_use]
    pub fn of_epochs(num_samples: u64, global_batch: u64, epochs: u64) -> Self {
        let one = Self::of_steps(num_samples, global_batch, 1);
        let total_steps = one.steps_per_epoch().saturating_mul(epochs.max(1));
        Self { total_steps, ..one }
    }

    /// Samples of the data set.
    #[must_use]
    pub const fn num_samples(&self) -> u64 {
        self.num_samples
    }

    /// Samples per step, but for the last of an epoch.
    #[must_use]
    pub const fn global_batch(&self) -> u64 {
        self.global_batch
    }

    /// Steps of the whole training.
    #[must_use]
    pub const fn total_steps(&self) -> u64 {
        self.total_steps
    }

    /// Steps of an epoch, the smaller last one included.
    #[must_use]
    pub const fn steps_per_epoch(&self) -> u64 {
        self.num_samples.div_ceil(self.global_batch)
    }

    /// Where training is after so many committed steps.
    #[must_use]
    pub const fn position(&self, committed_steps: u64) -> Position {
        Position {
            epoch: committed_steps / self.steps_per_epoch(),
            cursor: (committed_steps % self.steps_per_epoch()) * self.global_batch,
        }
    }

    /// Samples that so many committed steps have consumed, over all epochs.
    #[must_use]
    pub const fn committed_samples(&self, committed_steps: u64) -> u64 {
        let Position { epoch, cursor } = self.position(committed_steps);
        epoch
            .saturating_mul(self.num_samples)
            .saturating_add(cursor)
    }

    /// Samples of the whole training, over all epochs.
    #[must_use]
    pub const fn total_samples(&self) -> u64 {
        self.committed_samples(self.total_steps)
    }

    /// Where training is after so many committed samples.
    #[must_use]
    pub const fn position_at(&self, committed_samples: u64) -> Position {
        Position {
            epoch: committed_samples / self.num_samples,
            cursor: committed_samples % self.num_samples,
        }
    }

    /// The next step; `None` when training is complete. It ends where the epoch or training ends.
    #[must_use]
    pub fn batch_at(&self, mark: &Mark) -> Option<Batch> {
        let left = self.total_samples().checked_sub(mark.samples);
        let left = left.filter(|left| *left > 0)?;
        let Position { epoch, cursor } = self.position_at(mark.samples);
        let end = self
            .num_samples
            .min(cursor + mark.pace.batch.clamp(1, left));
        Some(Batch {
            step: mark.step + 1,
            epoch,
            places: cursor..end,
            ends_epoch: end == self.num_samples,
        })
    }

    /// Whether the test split is to be evaluated after so many committed samples: at the end of every so many
    /// epochs (0: of none), and at the end of training.
    #[must_use]
    pub fn is_evaluated_at(&self, committed_samples: u64, every_epochs: u32) -> bool {
        let Position { epoch, cursor } = self.position_at(committed_samples);
        let ends_epoch = cursor == 0 && epoch > 0;
        committed_samples >= self.total_samples()
            || ends_epoch && epoch.checked_rem(u64::from(every_epochs)) == Some(0)
    }

    /// Steps until training is complete, if the batch stays.
    #[must_use]
    pub const fn steps_to_come(&self, mark: &Mark) -> u64 {
        let batch = if mark.pace.batch == 0 {
            1
        } else {
            mark.pace.batch
        };
        let left = self.total_samples().saturating_sub(mark.samples);
        let of_epoch = self.num_samples - self.position_at(mark.samples).cursor;
        if left <= of_epoch {
            return left.div_ceil(batch);
        }
        let (epochs, rest) = (
            (left - of_epoch) / self.num_samples,
            (left - of_epoch) % self.num_samples,
        );
        of_epoch.div_ceil(batch) + epochs * self.num_samples.div_ceil(batch) + rest.div_ceil(batch)
    }
}

#[cfg(test)]
mod tests;
