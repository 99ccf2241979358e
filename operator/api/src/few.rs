//! Lists and maps that keep a bounded number of entries: an object of 1.4 MiB has room for 60,000
//! labels or 200,000 finalizers, which take several times as much memory as Rust strings.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use roundhouse_contract::{gang, labels};
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Most entries of a map that are kept besides those in [`READ`], in the order of the document.
pub(crate) const MAX_ENTRIES: usize = 1_024;
/// Most items of a list that are kept, in the order of the document.
pub(crate) const MAX_ITEMS: usize = 64;

/// Labels and annotations that the operator reads; they are kept regardless of
/// the number of others.
const READ: [&str; 14] = [
    labels::MANAGED_BY,
    labels::JOB_NAME,
    labels::JOB_UID,
    labels::WORKER_INDEX,
    labels::ATTEMPT,
    labels::LEFT_DOMAIN,
    labels::REPLICA_INDEX,
    labels::GANG,
    labels::MEMBERSHIP,
    labels::EARLIER,
    labels::REPLICA,
    labels::COPY_PAIR,
    labels::BUILT_FROM,
    gang::KUEUE_RETRIABLE,
];

/// The kept entries of a map of strings.
#[derive(Debug, Default)]
pub struct FewEntries {
    /// Entries that are kept, by key.
    pub kept: BTreeMap<String, String>,
    /// Number of entries in the document.
    pub number: usize,
}

impl<'de> Deserialize<'de> for FewEntries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Self::default())
    }
}

impl<'de> Visitor<'de> for FewEntries {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of strings")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self, A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            if READ.contains(&&*key) || self.number < MAX_ENTRIES {
                self.kept.insert(key, map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
            self.number += 1;
        }
        Ok(self)
    }
}

/// The first items of a list.
#[derive(Debug)]
pub struct FewItems<T>(pub Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for FewItems<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Items(PhantomData))
    }
}

struct Items<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Items<T> {
    type Value = FewItems<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<FewItems<T>, A::Error> {
        let mut kept = Vec::new();
        while kept.len() < MAX_ITEMS {
            let Some(item) = list.next_element()? else {
                return Ok(FewItems(kept));
            };
            kept.push(item);
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(FewItems(kept))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn long_maps_keep_first_entries_and_those_that_are_read() {
        for (number, kept) in [(0, 1), (3, 4), (60_000, MAX_ENTRIES + 1)] {
            let mut map: BTreeMap<String, String> = (0..number)
                .map(|at| (format!("a{at}"), String::new()))
                .collect();
            map.insert(labels::JOB_UID.to_owned(), "u".to_owned());
            let text = serde_json::to_string(&map).unwrap();
            let few: FewEntries = serde_json::from_str(&text).unwrap();
            assert_eq!((few.kept.len(), few.number), (kept, number + 1));
            assert_eq!(few.kept[labels::JOB_UID], "u");
        }
    }

    #[test]
    fn long_lists_keep_first_items() {
        for (number, kept) in [(0, 0), (3, 3), (60_000, MAX_ITEMS)] {
            let text = json!(vec!["a"; number]).to_string();
            let few: FewItems<String> = serde_json::from_str(&text).unwrap();
            assert_eq!(few.0.len(), kept);
        }
    }
}
