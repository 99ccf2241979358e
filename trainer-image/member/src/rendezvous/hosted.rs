//! Deletes keys of old generations from this process' store. A training of weeks has thousands of
//! generations, and each leaves its keys.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::Store;

/// Number of newest generations that keep their keys: ranks may still be leaving the previous one.
const KEPT: usize = 2;

/// Generations with keys in the store, and the names of their parts.
#[derive(Debug, Default)]
pub(super) struct Hosted(Mutex<BTreeMap<u64, String>>);

impl Hosted {
    /// Records that ranks begin to meet for a generation.
    pub(super) fn begin(&self, generation: u64, part: String) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(generation, part);
    }

    /// Deletes the keys of old generations. Call it when the newest one is connected, because then
    /// no rank reads them. If this fails, the keys stay, which costs only memory.
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
