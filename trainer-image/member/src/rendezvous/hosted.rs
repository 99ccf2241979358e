//! Which generations have met at this process' store. A training of weeks has thousands, and each leaves its keys.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::Store;

/// The newest ones keep their keys: ranks may still be leaving the one before the last.
const KEPT: usize = 2;

/// Generations whose keys are in the store, with the names of their parts.
#[derive(Debug, Default)]
pub(super) struct Hosted(Mutex<BTreeMap<u64, String>>);

impl Hosted {
    /// Ranks begin to meet.
    pub(super) fn begin(&self, generation: u64, part: String) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(generation, part);
    }

    /// The newest generation is connected, so nobody reads the keys of old ones any more: they are deleted. If that
    /// fails, they stay, which costs memory alone.
    pub(super) fn clear(&self, store: &impl Store) {
        let mut generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while generations.len() > KEPT {
            let Some((_, oldest)) = generations.pop_first() else {
                return;
            };
            let _ = store.part(&oldest).map(|part| part.clear());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::Memory;
    use super::*;

    #[test]
    fn a_store_does_not_grow_with_the_number_of_generations() {
        let store = Memory::default().serve(1);
        let hosted = Hosted::default();
        let name = |generation: u64| format!("gen{generation}");
        let keys_after = |generation: u64| {
            hosted.begin(generation, name(generation));
            let part = store.part(&name(generation)).unwrap();
            for key in ["a", "b"] {
                part.add(key, 1).unwrap();
            }
            hosted.clear(&store);
            store.num_keys()
        };
        let first: Vec<usize> = (1..=KEPT as u64).map(keys_after).collect();
        for generation in 3..20 {
            assert_eq!(Some(&keys_after(generation)), first.last());
        }
        let newest = store.part(&name(19)).unwrap();
        assert_eq!(newest.add("a", 0).unwrap(), 1);
    }
}
