//! What a worker's pod was built from: an annotation that the operator writes when it creates the
//! pod, and reads when it creates or checks the job's other pods.
//!
//! All pods of a job must be built from the same values: in one generation, two trainers of
//! different versions, or two checkpoint volumes, do not train one model.

use serde::{Deserialize, Serialize};

/// What a pod was built from. Unknown keys of a newer operator are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BuiltFrom {
    /// `metadata.generation` of the job when the pod was created.
    pub job_generation: i64,
    /// Fingerprint of the fields from which the pod is built and that may be edited while
    /// the job is suspended.
    pub spec: String,
    /// Version of the fingerprint's algorithm. Fingerprints of different
    /// versions cannot be compared.
    #[serde(default = "first_version")]
    pub spec_version: u32,
    /// The operator's trainer image. Templates without an image use it, and other images get
    /// the agent from it.
    pub trainer_image: String,
    /// Processes of the worker. It is recorded because the operator's settings decide which
    /// resources are GPUs. Older operators did not write this field and the following ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub procs_per_worker: Option<u32>,
    /// Device of the processes, as in `ROUNDHOUSE_EXPECTED_DEVICE`; empty for any usable device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_device: Option<String>,
    /// Architecture of the nodes on which the trainer image runs; empty for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trainer_architecture: Option<String>,
    /// Whether containers with the trainer image run as that image's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed_users: Option<bool>,
    /// Nodes that the operator excludes by name, because they have no label
    /// `kubernetes.io/hostname`. Nodes that the template or a webhook excludes are not included.
    /// Karpenter creates no node for a pod that names one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub named_nodes: Vec<String>,
}

/// The version of documents without one.
const fn first_version() -> u32 {
    1
}

impl BuiltFrom {
    /// Version of the fingerprint's algorithm in this program. It must be raised when the same spec
    /// gets another fingerprint, for example because a field with a default was added.
    pub const SPEC_VERSION: u32 = 1;

    /// Most node names that are read: users who create pods could make the list arbitrarily long.
    pub const MAX_NAMED_NODES: usize = 256;

    /// Reads the output of [`Self::to_json`]; `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut read: Self = serde_json::from_str(text).ok()?;
        if read.named_nodes.len() > Self::MAX_NAMED_NODES {
            read.named_nodes = Vec::new();
        }
        Some(read)
    }

    /// The document as compact JSON.
    ///
    /// # Errors
    /// The function never fails for values of this type; serde's signature requires a result.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn document_of_a_newer_operator_is_read() {
        let text = r#"{"jobGeneration":3,"spec":"abc","specVersion":2,"trainerImage":"trainer:1",
            "procsPerWorker":8,"expectedDevice":"cuda*8","trainerArchitecture":"arm64","fixedUsers":false,"namedNodes":["n1"],"color":"green"}"#;
        let expected = BuiltFrom {
            job_generation: 3,
            spec: "abc".to_owned(),
            spec_version: 2,
            trainer_image: "trainer:1".to_owned(),
            procs_per_worker: Some(8),
            expected_device: Some("cuda*8".to_owned()),
            trainer_architecture: Some("arm64".to_owned()),
            fixed_users: Some(false),
            named_nodes: vec!["n1".to_owned()],
        };
        assert_eq!(BuiltFrom::parse(text), Some(expected.clone()));
        assert_eq!(
            BuiltFrom::parse(&expected.to_json().unwrap()),
            Some(expected)
        );
        assert_eq!(BuiltFrom::parse("other text"), None);
        let older = r#"{"jobGeneration":3,"spec":"abc","trainerImage":"trainer:1"}"#;
        let older = BuiltFrom::parse(older).unwrap();
        assert_eq!((older.spec_version, older.procs_per_worker), (1, None));
        assert!(!older.to_json().unwrap().contains("procsPerWorker"));
    }

    #[test]
    fn excessive_node_names_are_dropped() {
        for (number, kept) in [(256, 256), (257, 0), (60_000, 0)] {
            let all = BuiltFrom {
                named_nodes: vec!["n".to_owned(); number],
                ..BuiltFrom::default()
            };
            let read = BuiltFrom::parse(&all.to_json().unwrap()).unwrap();
            assert_eq!(read.named_nodes.len(), kept);
        }
    }
}
