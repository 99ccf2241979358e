//! Which generations have met at this process' store. A training of weeks has thousands, and each leaves its keys.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use roundhouse_c10d::Store;

use super::gathering::part_of;

/// The newest ones keep their keys: ranks may still be leaving the one before the last.
const KEPT: usize = 2;

/// Generations whose keys are in the store.
#[derive(Debug, Default)]
pub(super) struct Hosted(Mutex<BTreeSet<u64>>);

impl Hosted {
    /// Ranks begin to meet.
    pub(super) fn begin(&self, generation: u64) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(generation);
    }

    /// The newest generation is connected, so nobody reads the keys of old ones any more: they are deleted. If that
    /// fails, they stay, which costs memory alone.
    pub(super) fn clear(&self, store: &Store) {
        let mut generations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while generations.len() > KEPT {
            let Some(oldest) = generations.pop_first() else {
                return;
            };
            let _ = part_of(store, oldest).map(|part| part.clear());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_store_does_not_grow_with_the_number_of_generations() {
        let patience = Duration::from_secs(10);
        let store = Store::host_at(Ipv4Addr::LOCALHOST.into(), 0, patience).unwrap();
        let hosted = Hosted::default();
        let keys_after = |generation: u64| {
            hosted.begin(generation);
            let part = part_of(&store, generation).unwrap();
            for key in ["a", "b"] {
                part.set(key, b"1").unwrap();
            }
            hosted.clear(&store);
            store.num_keys().unwrap()
        };
        let first: Vec<u64> = (1..=KEPT as u64).map(keys_after).collect();
        for generation in 3..20 {
            assert_eq!(Some(&keys_after(generation)), first.last());
        }
        let newest = part_of(&store, 19).unwrap();
        assert_eq!(newest.get("a").unwrap(), b"1");
    }
}
