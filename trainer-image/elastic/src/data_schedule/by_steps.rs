//! What tests hold the data schedule against: the same by the number of steps alone, which is right as long as the
//! batch stays.

use super::{Batch, DataSchedule, Position};

impl DataSchedule {
    /// Committed steps at a position; the inverse of [`Self::position`]. `None` for a cursor that
    /// no step boundary of this data schedule has.
    #[must_use]
    pub(crate) fn steps_at(&self, position: Position) -> Option<u64> {
        let Position { epoch, cursor } = position;
        let batch = self.growth.batch(self.global_batch, epoch);
        let on_boundary = cursor < self.num_samples && cursor.is_multiple_of(batch);
        on_boundary.then(|| self.steps_before_epoch(epoch) + cursor / batch)
    }

    /// The step after so many committed ones; `None` when training is complete.
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
