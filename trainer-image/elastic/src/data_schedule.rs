//! The data schedule of a training: which samples belong to which step.
//!
//! An epoch of N samples is divided into batches of G. Its last batch is smaller if G does not
//! divide N, so each sample is used exactly once per epoch. G can grow at the start of given epochs
//! ([`Growth`]). The position (epoch, cursor), where the cursor counts the samples used in the
//! epoch, depends only on the number of committed samples, and so does G. As long as the number of
//! workers does not change G, both depend only on the number of committed steps. Nothing here
//! depends on the world size; [`crate::scaling`] describes how G can follow it.

use std::ops::Range;

use roundhouse_contract::trainer::Eval;
use roundhouse_contract::trainer::optimizer::BatchGrowth;

use crate::training_position::TrainingPosition;

#[cfg(test)]
mod by_steps;
pub mod growth;
mod segments;

pub use growth::{Growth, Stage};

/// Place in the data: an epoch and the samples used in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Position {
    /// Epoch of the next step, from 0.
    pub epoch: u64,
    /// Samples of that epoch that committed steps have used.
    pub cursor: u64,
}

/// The samples of one step, as places in the epoch's permutation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Number of the step, from 1.
    pub step: u64,
    pub epoch: u64,
    /// Places in the order of that epoch; at least one.
    pub places: Range<u64>,
    /// Whether the epoch ends with this batch.
    pub ends_epoch: bool,
}

impl Batch {
    /// Number of samples of the batch, over all ranks.
    #[must_use]
    pub const fn num_samples(&self) -> u64 {
        self.places.end - self.places.start
    }
}

/// Data set size, batch size and length of a training; all at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataSchedule {
    num_samples: u64,
    global_batch: u64,
    growth: Growth,
    total_steps: u64,
}

/// Length of a training. A number of 0 counts as 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// Number of optimizer steps.
    Steps(u64),
    /// Number of passes over the data.
    Epochs(u64),
}

impl DataSchedule {
    /// Creates a schedule. A number of 0 counts as 1, and a batch larger than the data set becomes
    /// the whole data set.
    ///
    /// With `growth`, a length in steps is still the number of steps; the steps
    /// then use more samples.
    #[must_use]
    pub fn new(
        num_samples: u64,
        global_batch: u64,
        length: Length,
        growth: Option<&BatchGrowth>,
    ) -> Self {
        let num_samples = num_samples.max(1);
        let global_batch = global_batch.clamp(1, num_samples);
        let growth = growth.map(|settings| Growth::new(settings, global_batch, num_samples));
        let data_schedule = Self {
            num_samples,
            global_batch,
            growth: growth.unwrap_or_default(),
            total_steps: 1,
        };
        let total_steps = match length {
            Length::Steps(steps) => steps.max(1),
            Length::Epochs(epochs) => data_schedule.steps_before_epoch(epochs.max(1)),
        };
        Self {
            total_steps,
            ..data_schedule
        }
    }

    /// Creates a schedule of `steps` steps with a constant batch.
    #[must_use]
    pub fn of_steps(num_samples: u64, global_batch: u64, steps: u64) -> Self {
        Self::new(num_samples, global_batch, Length::Steps(steps), None)
    }

    /// Creates a schedule of `epochs` passes over the data with a constant batch.
    #[must_use]
    pub fn of_epochs(num_samples: u64, global_batch: u64, epochs: u64) -> Self {
        Self::new(num_samples, global_batch, Length::Epochs(epochs), None)
    }

    /// Number of samples of the data set.
    #[must_use]
    pub const fn num_samples(&self) -> u64 {
        self.num_samples
    }

    /// Samples per step of the first epoch, except its last step.
    #[must_use]
    pub const fn global_batch(&self) -> u64 {
        self.global_batch
    }

    /// Growth of the batch after the first epoch.
    #[must_use]
    pub const fn growth(&self) -> &Growth {
        &self.growth
    }

    /// Samples of the next step, unless the epoch or training ends earlier: the batch of the
    /// position's workers, multiplied by the growth of the job's batch so far.
    #[must_use]
    pub fn batch_size(&self, position: &TrainingPosition) -> u64 {
        let Position { epoch, .. } = self.position_at(position.samples);
        self.grown(position.pace.batch, epoch)
    }

    fn grown(&self, own: u64, epoch: u64) -> u64 {
        let batch = self.growth.scaled(own, self.global_batch, epoch);
        batch.clamp(1, self.num_samples)
    }

    /// Number of steps of the whole training.
    #[must_use]
    pub const fn total_steps(&self) -> u64 {
        self.total_steps
    }

    /// Samples that this many committed steps have used, over all epochs.
    #[must_use]
    pub fn committed_samples(&self, committed_steps: u64) -> u64 {
        let Position { epoch, cursor } = self.position(committed_steps);
        epoch
            .saturating_mul(self.num_samples)
            .saturating_add(cursor)
    }

    /// Number of samples of the whole training, over all epochs.
    #[must_use]
    pub fn total_samples(&self) -> u64 {
        self.committed_samples(self.total_steps)
    }

    /// Returns the place in the data after this many committed samples.
    #[must_use]
    pub const fn position_at(&self, committed_samples: u64) -> Position {
        Position {
            epoch: committed_samples / self.num_samples,
            cursor: committed_samples % self.num_samples,
        }
    }

    /// Returns the next step; `None` when training is complete. The batch ends where the
    /// epoch or training ends.
    #[must_use]
    pub fn batch_at(&self, position: &TrainingPosition) -> Option<Batch> {
        let left = self.total_samples().checked_sub(position.samples);
        let left = left.filter(|left| *left > 0)?;
        let Position { epoch, cursor } = self.position_at(position.samples);
        let end = self
            .num_samples
            .min(cursor + self.batch_size(position).clamp(1, left));
        Some(Batch {
            step: position.step + 1,
            epoch,
            places: cursor..end,
            ends_epoch: end == self.num_samples,
        })
    }

    /// Whether to evaluate the test split after this many committed steps and samples: at the end
    /// of every `every_epochs` epochs (0: never), after every `every_steps` steps, and at the end
    /// of training. It does not depend on the world size.
    #[must_use]
    pub fn is_evaluated_at(&self, steps: u64, committed_samples: u64, eval: &Eval) -> bool {
        let Eval {
            every_epochs,
            every_steps,
        } = *eval;
        let is_multiple =
            |number: u64, every: u32| number > 0 && number.checked_rem(u64::from(every)) == Some(0);
        let Position { epoch, cursor } = self.position_at(committed_samples);
        committed_samples >= self.total_samples()
            || cursor == 0 && is_multiple(epoch, every_epochs)
            || every_steps.is_some_and(|every| is_multiple(steps, every))
    }
}

#[cfg(test)]
mod tests;
