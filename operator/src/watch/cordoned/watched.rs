//! A node as the watch parses it: name, cordon and taints. The images and volumes that a node lists
//! would take a hundred times as much memory.

use k8s_openapi::api::core::v1::Node as FullNode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use roundhouse_api::resource_names;
use serde::{Deserialize, Deserializer};

/// Taints of autoscalers, which do not cordon a node before they remove it.
const DISRUPTIONS: [&str; 5] = [
    // Karpenter: v1, and earlier versions.
    "karpenter.sh/disrupted",
    "karpenter.sh/disruption",
    // The cluster autoscaler: it removes the node, or will if nothing needs the node.
    "ToBeDeletedByClusterAutoscaler",
    "DeletionCandidateOfClusterAutoscaler",
    // GKE: some seconds before it ends a spot node.
    "cloud.google.com/impending-node-termination",
];
/// Prefix of the taints of the AWS node termination handler: spot interruptions, maintenance,
/// rebalancing.
const AWS_TERMINATION: &str = "aws-node-termination-handler/";

/// A node, and whether its pods have to leave it.
#[derive(Clone, Debug)]
pub(crate) struct WatchedNode {
    metadata: ObjectMeta,
    /// Whether it is cordoned, or has a taint of an autoscaler that removes it.
    pub(crate) is_leaving: bool,
}

#[derive(Deserialize)]
struct Parts {
    #[serde(default)]
    metadata: Metadata,
    spec: Option<Spec>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: Option<String>,
    resource_version: Option<String>,
}

#[derive(Default, Deserialize)]
struct Spec {
    unschedulable: Option<bool>,
    taints: Option<Vec<Taint>>,
}

#[derive(Deserialize)]
struct Taint {
    key: String,
}

impl<'de> Deserialize<'de> for WatchedNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Parts { metadata, spec } = Parts::deserialize(deserializer)?;
        let Spec {
            unschedulable,
            taints,
        } = spec.unwrap_or_default();
        let disrupts = |taint: &Taint| {
            DISRUPTIONS.contains(&taint.key.as_str()) || taint.key.starts_with(AWS_TERMINATION)
        };
        Ok(Self {
            metadata: ObjectMeta {
                name: metadata.name,
                resource_version: metadata.resource_version,
                ..ObjectMeta::default()
            },
            is_leaving: unschedulable == Some(true) || taints.iter().flatten().any(disrupts),
        })
    }
}

impl Resource for WatchedNode {
    resource_names!(FullNode, metadata);
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(spec: &Value) -> WatchedNode {
        let node = json!({
            "apiVersion": "v1", "kind": "Node", "spec": spec,
            "metadata": {"name": "n1", "resourceVersion": "7", "labels": {"a": "b"}},
            "status": {"images": [{"names": ["a"], "sizeBytes": 1}]},
        });
        serde_json::from_str(&node.to_string()).unwrap()
    }

    #[test]
    fn nodes_that_autoscalers_remove_count_as_cordoned() {
        let taint = |key: &str| json!({"taints": [{"key": "gpu", "effect": "NoSchedule"}, {"key": key, "effect": "NoSchedule"}]});
        let cases = [
            (json!({}), false),
            (Value::Null, false),
            (json!({"unschedulable": true}), true),
            (taint("nvidia.com/gpu"), false),
            (taint("karpenter.sh/disrupted"), true),
            (taint("ToBeDeletedByClusterAutoscaler"), true),
            (taint("DeletionCandidateOfClusterAutoscaler"), true),
            (taint("aws-node-termination-handler/spot-itn"), true),
            (taint("cloud.google.com/impending-node-termination"), true),
            // Kubernetes itself reports these by the node's readiness.
            (taint("node.kubernetes.io/unreachable"), false),
        ];
        for (spec, expected) in cases {
            assert_eq!(node(&spec).is_leaving, expected, "{spec}");
        }
        let meta = node(&json!({})).metadata;
        assert_eq!(meta.name.as_deref(), Some("n1"));
        assert_eq!(meta.resource_version.as_deref(), Some("7"));
        assert_eq!(meta.labels, None);
    }
}
