//! A cache of row groups within a memory limit. Threads that need the same row group wait for the
//! first of them.

use std::sync::{Arc, Mutex, PoisonError};

use crate::error::DataError;

/// A row group, once it has been read.
type Slot<G> = Arc<Mutex<Option<Arc<G>>>>;

#[derive(Debug)]
struct Kept<K, G> {
    key: K,
    slot: Slot<G>,
    num_bytes: usize,
}

/// The most recently used row groups, by key.
#[derive(Debug)]
pub(super) struct Groups<K, G> {
    max_bytes: usize,
    /// Cached groups; the most recently used one is last.
    kept: Mutex<Vec<Kept<K, G>>>,
}

impl<K: Copy + Eq, G> Groups<K, G> {
    pub(super) const fn new(max_bytes: usize) -> Self {
        Self {
            max_bytes,
            kept: Mutex::new(Vec::new()),
        }
    }

    /// Returns a row group from the cache or from `load`, which also returns its size in bytes.
    pub(super) fn get(
        &self,
        key: K,
        load: impl FnOnce() -> Result<(G, usize), DataError>,
    ) -> Result<Arc<G>, DataError> {
        let slot = self.slot(key);
        let mut content = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(group) = content.as_ref() {
            return Ok(Arc::clone(group));
        }
        let (group, num_bytes) = load()?;
        let group = Arc::new(group);
        *content = Some(Arc::clone(&group));
        drop(content);
        self.account(key, num_bytes);
        Ok(group)
    }

    fn slot(&self, key: K) -> Slot<G> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let found = kept.iter().position(|kept| kept.key == key);
        let new = || Kept {
            key,
            slot: Slot::default(),
            num_bytes: 0,
        };
        let found = found.map_or_else(new, |at| kept.remove(at));
        let slot = Arc::clone(&found.slot);
        kept.push(found);
        slot
    }

    /// Drops the oldest groups until the limit is met; the newest always stays.
    fn account(&self, key: K, num_bytes: usize) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = kept.iter_mut().find(|kept| kept.key == key) {
            found.num_bytes = num_bytes;
        }
        let mut sum: usize = kept.iter().map(|kept| kept.num_bytes).sum();
        while sum > self.max_bytes && kept.len() > 1 {
            sum -= kept.remove(0).num_bytes;
        }
    }
}

#[cfg(test)]
impl<K, G> Groups<K, G> {
    /// Number of cached bytes.
    pub(super) fn num_bytes(&self) -> usize {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().map(|kept| kept.num_bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recently_used_groups_are_cached_within_the_limit() {
        let groups = Groups::new(25);
        let mut loads = Vec::new();
        for number in [0, 1, 0, 2, 0, 1, 2] {
            let load = || {
                loads.push(number);
                Ok((number, 10))
            };
            assert_eq!(*groups.get(number, load).unwrap(), number);
        }
        assert_eq!(loads, [0, 1, 2, 1, 2]);
        assert_eq!(groups.num_bytes(), 20);
    }

    #[test]
    fn unreadable_group_is_tried_again() {
        let groups = Groups::new(25);
        let failed = groups.get(0, || Err(DataError::config("x", "y")));
        assert!(failed.is_err());
        assert_eq!(*groups.get(0, || Ok((7, 1))).unwrap(), 7);
    }
}
