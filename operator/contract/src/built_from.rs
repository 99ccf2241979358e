//! What a worker's pod was built from: an annotation that the operator writes at its creation, and reads when it decides
//! about the others.
//!
//! All pods of a job have to be built from the same: two trainers of different versions, or two checkpoint volumes, in one
//! generation do not train one model.

use serde::{Deserialize, Serialize};

/// What a pod was built from. Keys that a newer operator has added are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BuiltFrom {
    /// `metadata.generation` of the job.
    pub job_generation: i64,
    /// Fingerprint of the parts of the spec that are in the pod and may be edited while the job is suspended.
    pub spec: String,
    /// Version of the way in which the fingerprint was made. Fingerprints of different versions cannot be compared.
    #[serde(default = "first_version")]
    pub spec_version: u32,
    /// The operator's trainer image: that of a template which names none, and where the agent of other images comes from.
    pub trainer_image: String,
    /// Processes of the worker: which resources are GPUs is a setting of the operator. Older operators did not say this and what follows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub procs_per_worker: Option<u32>,
    /// What they compute on, as `ROUNDHOUSE_EXPECTED_DEVICE` says it; empty: whatever can be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_device: Option<String>,
    /// Architecture of the nodes that the trainer image runs on; empty: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trainer_architecture: Option<String>,
    /// Whether containers of the trainer image have its user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed_users: Option<bool>,
    /// Nodes that the operator keeps the pod from by their names, because they have no label `kubernetes.io/hostname`. What the
    /// template or a webhook names is not among them. Karpenter makes no node for a pod that names one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub named_nodes: Vec<String>,
}

/// Of documents that do not say it.
const fn first_version() -> u32 {
    1
}

impl BuiltFrom {
    /// How this version makes fingerprints. It is raised when the same spec gets another fingerprint, because a field was
    /// added that has a default, say.
    pub const SPEC_VERSION: u32 = 1;

    /// Most names of nodes that are kept: users who create pods could make the list arbitrarily long.
    pub const MAX_NAMED_NODES: usize = 256;

    /// Reads what [`Self::to_json`] wrote; `None` for what somebody else wrote.
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
    /// Never for values of this type; serde's signature asks for it.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_of_a_newer_operator_is_read() {
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
        assert_eq!(BuiltFrom::parse("somebody's"), None);
        let older = r#"{"jobGeneration":3,"spec":"abc","trainerImage":"trainer:1"}"#;
        let older = BuiltFrom::parse(older).unwrap();
        assert_eq!((older.spec_version, older.procs_per_worker), (1, None));
        assert!(!older.to_json().unwrap().contains("procsPerWorker"));
    }

    #[test]
    fn of_too_many_names_of_nodes_none_is_kept() {
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
