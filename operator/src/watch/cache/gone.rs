//! Objects that were deleted a short while ago. If the watch reported a deletion, it has also seen
//! the writes before it.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// The operator does not wait longer for its own writes.
const KEPT: Duration = Duration::from_secs(30);

/// Versions at which objects were deleted, by namespace and name.
#[derive(Debug, Default)]
pub(super) struct Gone {
    versions: HashMap<(String, String), u64>,
    order: VecDeque<(Instant, (String, String), u64)>,
}

impl Gone {
    /// An object was deleted at this version.
    pub(super) fn add(&mut self, namespace: &str, name: &str, version: u64) {
        self.add_at(Instant::now(), namespace, name, version);
    }

    fn add_at(&mut self, now: Instant, namespace: &str, name: &str, version: u64) {
        while let Some((_, of, version)) = self.order.pop_front_if(|(at, ..)| *at + KEPT <= now) {
            if self.versions.get(&of) == Some(&version) {
                self.versions.remove(&of);
            }
        }
        let of = (namespace.to_owned(), name.to_owned());
        self.versions.insert(of.clone(), version);
        self.order.push_back((now, of, version));
    }

    /// The version at which an object of this name was last deleted, if that is known.
    pub(super) fn version(&self, namespace: &str, name: &str) -> Option<u64> {
        let of = (namespace.to_owned(), name.to_owned());
        self.versions.get(&of).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deletions_expire_and_the_newest_version_of_a_name_counts() {
        let (mut gone, begun) = (Gone::default(), Instant::now());
        gone.add_at(begun, "ml", "a", 3);
        gone.add_at(begun + KEPT / 2, "ml", "a", 5);
        gone.add_at(begun + KEPT, "ml", "b", 6);
        assert_eq!(gone.version("ml", "a"), Some(5));
        gone.add_at(begun + KEPT * 2, "ml", "c", 7);
        assert_eq!(
            (gone.version("ml", "a"), gone.version("ml", "b")),
            (None, None)
        );
        assert_eq!(
            (gone.version("ml", "c"), gone.version("other", "c")),
            (Some(7), None)
        );
        assert_eq!(gone.order.len(), 1);
    }
}
