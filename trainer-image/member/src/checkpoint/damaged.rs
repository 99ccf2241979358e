//! Checkpoints that were found to be damaged when their bytes were read. Whatever looks at the volume leaves them out: the
//! search for a checkpoint to continue with, the question whether one holds a state, and retention.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use roundhouse_elastic::CheckpointId;

/// What the ranks of a world have found out; its clones share that.
#[derive(Clone, Debug, Default)]
pub struct Damaged(Arc<Mutex<BTreeMap<CheckpointId, Damage>>>);

/// How a checkpoint cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// Its bytes are wrong, and stay so.
    Bytes,
    /// The volume has answered with errors for too long. The next generation tries again.
    Unread,
}

impl Damaged {
    /// A rank could not read the bytes of this checkpoint, or they are wrong.
    pub fn mark(&self, id: CheckpointId, damage: Damage) {
        self.lock().insert(id, damage);
    }

    /// What is known of it.
    #[must_use]
    pub fn of(&self, id: CheckpointId) -> Option<Damage> {
        self.lock().get(&id).copied()
    }

    /// The same state was saved again in its place.
    pub fn forget(&self, id: CheckpointId) {
        self.lock().remove(&id);
    }

    /// A generation is over. What its ranks could not read may be read by the next one.
    pub fn forget_unread(&self) {
        self.lock().retain(|_, damage| *damage == Damage::Bytes);
    }

    /// A thread that panicked left whole entries.
    fn lock(&self) -> MutexGuard<'_, BTreeMap<CheckpointId, Damage>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_generation_retries_unread_checkpoint() {
        let id = |step| CheckpointId {
            generation: 1,
            step,
        };
        let damaged = Damaged::default();
        damaged.mark(id(1), Damage::Unread);
        damaged.mark(id(2), Damage::Bytes);
        damaged.clone().forget_unread();
        assert_eq!(damaged.of(id(1)), None);
        assert_eq!(damaged.of(id(2)), Some(Damage::Bytes));
        damaged.forget(id(2));
        assert_eq!(damaged.of(id(2)), None);
    }
}
