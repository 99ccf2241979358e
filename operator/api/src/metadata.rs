//! The metadata of an object that a user may have created. As little of it as possible is read: one
//! object that cannot be parsed, or that takes hundreds of MiB, would make the whole list unusable.
//! So `managedFields`, whose times Go can parse and Rust cannot always, are skipped, and the number
//! of all entries is bounded.

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::few::{FewEntries, FewItems, MAX_ENTRIES};

/// The fields of metadata that are read.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    labels: Option<FewEntries>,
    annotations: Option<FewEntries>,
    finalizers: Option<FewItems<String>>,
    owner_references: Option<Controller>,
}

impl Metadata {
    /// Number of labels, if not all of them are kept.
    #[must_use]
    pub fn excess_labels(&self) -> Option<usize> {
        let number = self.labels.as_ref()?.number;
        (number > MAX_ENTRIES).then_some(number)
    }
}

impl From<Metadata> for ObjectMeta {
    fn from(read: Metadata) -> Self {
        Self {
            name: read.name,
            namespace: read.namespace,
            uid: read.uid,
            resource_version: read.resource_version,
            generation: read.generation,
            creation_timestamp: read.creation_timestamp,
            deletion_timestamp: read.deletion_timestamp,
            labels: read.labels.map(|few| few.kept),
            annotations: read.annotations.map(|few| few.kept),
            finalizers: read.finalizers.map(|few| few.0),
            owner_references: read.owner_references.and_then(|it| Some(vec![it.0?])),
            ..Self::default()
        }
    }
}

/// An object of which only the metadata is read.
#[derive(Debug, Deserialize)]
pub struct WithMetadata {
    /// The bounded metadata of the object.
    #[serde(default)]
    pub metadata: Metadata,
}

/// The owner that is the controller. The API server admits at most one.
#[derive(Debug, Default)]
struct Controller(Option<OwnerReference>);

impl<'de> Deserialize<'de> for Controller {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Self::default())
    }
}

impl<'de> Visitor<'de> for Controller {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of owners")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut owners: A) -> Result<Self, A::Error> {
        while let Some(owner) = owners.next_element::<OwnerReference>()? {
            if owner.controller == Some(true) {
                self.0.get_or_insert(owner);
            }
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_controller_among_owners_is_kept() {
        let owner = |uid: usize, controller: bool| json!({"apiVersion": "v1", "kind": "a", "name": "b", "uid": uid.to_string(), "controller": controller});
        let mut owners: Vec<_> = (0..20_000).map(|uid| owner(uid, false)).collect();
        owners.push(owner(7, true));
        for (owners, expected) in [(&owners[..20_000], None), (&owners[..], Some("7"))] {
            let text = json!({"name": "a", "ownerReferences": owners}).to_string();
            let read: Metadata = serde_json::from_str(&text).unwrap();
            let kept = ObjectMeta::from(read).owner_references;
            let uids: Vec<&str> = kept.iter().flatten().map(|it| &*it.uid).collect();
            assert_eq!(uids, expected.into_iter().collect::<Vec<_>>());
        }
    }

    /// The API server stores such a time, and prints it with five digits for the year in a time
    /// zone west of it.
    #[test]
    fn invalid_times_in_managed_fields_are_ignored() {
        for time in ["9999-12-31T23:59:59Z", "10000-01-01T22:59:59Z"] {
            let field = json!({"manager": "m", "operation": "Apply", "time": time});
            let text = json!({"metadata": {"name": "a", "managedFields": [field]}}).to_string();
            assert!(
                serde_json::from_str::<ObjectMeta>(&json!({"managedFields": [field]}).to_string())
                    .is_err()
            );
            let read: WithMetadata = serde_json::from_str(&text).unwrap();
            assert_eq!(ObjectMeta::from(read.metadata).name.as_deref(), Some("a"));
        }
    }
}
