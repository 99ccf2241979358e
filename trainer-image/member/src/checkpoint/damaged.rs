//! Remembers checkpoints whose bytes were found to be damaged. The search for a checkpoint to load,
//! the check whether a checkpoint holds a state, and retention leave them out.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use roundhouse_elastic::CheckpointId;

/// Damaged checkpoints by id. Clones share the contents.
#[derive(Clone, Debug, Default)]
pub struct Damaged(Arc<Mutex<BTreeMap<CheckpointId, Damage>>>);

/// Why a checkpoint cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Damage {
    /// Its bytes are wrong. This is permanent.
    Bytes,
    /// The volume answered with errors for too long. The next generation tries again.
    Unread,
}

impl Damaged {
    /// Records that a rank could not read this checkpoint or found wrong bytes.
    pub fn mark(&self, id: CheckpointId, damage: Damage) {
        self.lock().insert(id, damage);
    }

    /// Returns the known damage of a checkpoint.
    #[must_use]
    pub fn of(&self, id: CheckpointId) -> Option<Damage> {
        self.lock().get(&id).copied()
    }

    /// Forgets a checkpoint that was replaced by the same state.
    pub fn forget(&self, id: CheckpointId) {
        self.lock().remove(&id);
    }

    /// Forgets checkpoints that could not be read. Called at the end of a generation, because the
    /// next one may be able to read them.
    pub fn forget_unread(&self) {
        self.lock().retain(|_, damage| *damage == Damage::Bytes);
    }

    /// A thread that panicked has left complete entries, so a poisoned lock is usable.
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
