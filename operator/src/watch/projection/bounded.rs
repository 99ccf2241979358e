//! A Service, NetworkPolicy or PodGroup as the watch parses it. Users who may create them can give
//! them the operator's labels and 1.4 MiB of empty ports, which take 30 times as much memory as
//! Rust structs. An object that is larger than those of the operator is not parsed.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use roundhouse_api::metadata::WithMetadata;
use roundhouse_api::resource_names;
use serde::de::{self, DeserializeOwned};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// Most bytes of JSON of an object that is parsed. The operator's objects have a few KiB; their
/// managed fields may add as much again, and an administrator may list many peers that read
/// metrics.
const MAX_BYTES: usize = 32 * 1_024;

/// An object that is parsed only if it is small.
#[derive(Clone, Debug)]
pub struct Bounded<K> {
    metadata: ObjectMeta,
    /// `None`: the object is too large, or does not have the fields of its kind. The operator did
    /// not create it.
    pub object: Option<K>,
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Bounded<K> {
    /// Reads the JSON text that the API server sends.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let text = text.get();
        let WithMetadata { metadata } = serde_json::from_str(text).map_err(de::Error::custom)?;
        let object = (text.len() <= MAX_BYTES)
            .then(|| serde_json::from_str(text).ok())
            .flatten();
        Ok(Self {
            metadata: metadata.into(),
            object,
        })
    }
}

impl<K: Resource> Resource for Bounded<K> {
    resource_names!(K, metadata);
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::networking::v1::NetworkPolicy;
    use serde_json::json;

    use super::*;

    #[test]
    fn large_or_malformed_objects_keep_only_their_metadata() {
        let policy = |spec| {
            let metadata = json!({"name": "digits", "namespace": "ml", "resourceVersion": "7", "labels": {"a": "b"}});
            let text = json!({"metadata": metadata, "spec": spec}).to_string();
            serde_json::from_str::<Bounded<NetworkPolicy>>(&text).unwrap()
        };
        let ports = |number| json!({"ingress": [{"ports": vec![json!({}); number]}]});
        for (spec, is_parsed) in [
            (ports(3), true),
            (ports(400_000), false),
            (json!({"ingress": "all"}), false),
        ] {
            let read = policy(spec);
            assert_eq!(read.object.is_some(), is_parsed);
            assert_eq!(read.meta().name.as_deref(), Some("digits"));
            assert_eq!(read.meta().labels.as_ref().unwrap()["a"], "b");
        }
    }
}
