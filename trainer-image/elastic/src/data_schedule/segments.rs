//! Runs of consecutive epochs with the same batch, for sums over steps.

use super::{DataSchedule, Position};
use crate::training_position::TrainingPosition;

/// Epochs `first..end` that have the same batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segment {
    first: u64,
    /// `u64::MAX` for the last segment, which has no end.
    end: u64,
    batch: u64,
}

impl DataSchedule {
    fn segments(&self) -> impl Iterator<Item = Segment> {
        let stages = self.growth.stages();
        let borders = std::iter::once((0, self.global_batch));
        let borders = borders.chain(
            stages
                .iter()
                .map(|stage| (stage.from_epoch, stage.global_batch)),
        );
        borders.enumerate().map(move |(index, (first, batch))| {
            let end = stages.get(index).map_or(u64::MAX, |next| next.from_epoch);
            Segment { first, end, batch }
        })
    }

    /// Number of steps in the epochs before this one.
    #[must_use]
    pub fn steps_before_epoch(&self, epoch: u64) -> u64 {
        self.segments()
            .map(|Segment { first, end, batch }| {
                let epochs = epoch.min(end).saturating_sub(first);
                epochs.saturating_mul(self.num_samples.div_ceil(batch))
            })
            .fold(0, u64::saturating_add)
    }

    /// Place in the data after this many committed steps, if the number of workers
    /// never changed the batch.
    #[must_use]
    pub fn position(&self, committed_steps: u64) -> Position {
        let mut left = committed_steps;
        let mut position = Position::default();
        for Segment { first, end, batch } in self.segments() {
            let steps_per_epoch = self.num_samples.div_ceil(batch);
            position = Position {
                epoch: first.saturating_add(left / steps_per_epoch),
                cursor: (left % steps_per_epoch) * batch,
            };
            if position.epoch < end {
                break;
            }
            left -= (end - first).saturating_mul(steps_per_epoch).min(left);
        }
        position
    }

    /// Steps until training is complete, if the number of workers does not change the batch.
    #[must_use]
    pub fn steps_to_come(&self, position: &TrainingPosition) -> u64 {
        let total = self.total_samples();
        self.segments()
            .map(|Segment { first, end, .. }| {
                let batch = self.grown(position.pace.batch, first);
                let from = first.saturating_mul(self.num_samples).max(position.samples);
                let to = end.saturating_mul(self.num_samples).min(total);
                self.steps_between(from, to, batch)
            })
            .fold(0, u64::saturating_add)
    }

    /// Steps of `batch` samples between two numbers of committed samples. No step crosses the
    /// end of an epoch.
    fn steps_between(&self, from: u64, to: u64, batch: u64) -> u64 {
        let left = to.saturating_sub(from);
        let of_epoch = self.num_samples - from % self.num_samples;
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
