//! A second implementation of the schedule, for tests to compare with: it uses only the number of
//! steps, which is correct while the number of workers does not change the batch.

use super::{Batch, DataSchedule, Position};

impl DataSchedule {
    /// Committed steps at a position; the inverse of [`Self::position`]. `None` if no step
    /// ends at this cursor.
    #[must_use]
    pub(crate) fn steps_at(&self, position: Position) -> Option<u64> {
        let Position { epoch, cursor } = position;
        let batch = self.growth.batch(self.global_batch, epoch);
        let on_boundary = cursor < self.num_samples && cursor.is_multiple_of(batch);
        on_boundary.then(|| self.steps_before_epoch(epoch) + cursor / batch)
    }

    /// Returns the step after `committed_steps`; `None` when training is complete.
    #[must_use]
    pub(crate) fn next_batch(&self, committed_steps: u64) -> Option<Batch> {
        if committed_steps >= self.total_steps {
            return None;
        }
        let Position { epoch, cursor } = self.position(committed_steps);
        let batch = self.growth.batch(self.global_batch, epoch);
        let end = self.num_samples.min(cursor + batch);
        Some(Batch {
            step: committed_steps + 1,
            epoch,
            places: cursor..end,
            ends_epoch: end == self.num_samples,
        })
    }
}
