//! Labels or annotations, of which a bounded number is kept: an object of 1.4 MiB has room for 60,000 labels, which take several
//! times as much as Rust strings.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Most entries that are kept, in the order of the document.
const MAX_ENTRIES: usize = 1_024;

/// The first entries of a map.
#[derive(Default)]
pub(super) struct Few(pub(super) BTreeMap<String, String>);

impl<'de> Deserialize<'de> for Few {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Self::default())
    }
}

impl<'de> Visitor<'de> for Few {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of strings")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self, A::Error> {
        while self.0.len() < MAX_ENTRIES {
            let Some((key, value)) = map.next_entry()? else {
                return Ok(self);
            };
            self.0.insert(key, value);
        }
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_map_without_end_the_first_entries_are_kept() {
        for (number, kept) in [(0, 0), (3, 3), (60_000, MAX_ENTRIES)] {
            let map: BTreeMap<String, String> = (0..number)
                .map(|at| (format!("k{at}"), String::new()))
                .collect();
            let text = serde_json::to_string(&map).unwrap();
            let few: Few = serde_json::from_str(&text).unwrap();
            assert_eq!(few.0.len(), kept);
        }
    }
}
