//! A pod as the watch parses it: only the cached fields. A user who may create pods in one
//! namespace can give a pod the operator's labels and a spec of 1.4 MiB, which takes hundreds of
//! MiB as Rust structs. Most of any pod are its managed fields.

use k8s_openapi::api::core::v1::{Pod as FullPod, PodSchedulingGate, PodSpec, PodStatus};
use roundhouse_api::metadata::Metadata;
use roundhouse_api::{FewItems, resource_by};
use roundhouse_planner::Pod;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// A pod with only the fields that [`super::pod`] reads.
#[derive(Clone, Debug)]
pub(crate) struct WatchedPod {
    pub(crate) pod: FullPod,
}

impl WatchedPod {
    pub(crate) fn slim(&self) -> Pod {
        super::pod(&self.pod)
    }
}

#[derive(Deserialize)]
struct Parts {
    #[serde(default)]
    metadata: Metadata,
    spec: Option<Spec>,
    /// Kept as JSON: a status that cannot be read is a problem of one pod, and not of all.
    status: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    node_name: Option<String>,
    /// Only their number matters.
    readiness_gates: Option<Vec<IgnoredAny>>,
    scheduling_gates: Option<FewItems<PodSchedulingGate>>,
}

impl<'de> Deserialize<'de> for WatchedPod {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Parts {
            metadata,
            spec,
            status,
        } = Parts::deserialize(deserializer)?;
        let spec = spec.map(|spec| PodSpec {
            node_name: spec.node_name,
            readiness_gates: spec.readiness_gates.map(|_| Vec::new()),
            scheduling_gates: spec.scheduling_gates.map(|few| few.0),
            ..PodSpec::default()
        });
        let status: Option<PodStatus> =
            status.and_then(|status| serde_json::from_str(status.get()).ok());
        Ok(Self {
            pod: FullPod {
                metadata: metadata.into(),
                spec,
                status,
            },
        })
    }
}

resource_by!(WatchedPod, FullPod, pod);

#[cfg(test)]
mod tests {
    use kube::Resource;
    use serde_json::json;

    use super::*;
    use crate::watch::projection;

    #[test]
    fn watched_pod_equals_the_full_pod_in_all_kept_fields() {
        let text = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "digits-worker-1-2", "namespace": "ml", "uid": "p", "resourceVersion": "7",
                "creationTimestamp": "2026-01-01T00:00:00Z", "deletionTimestamp": "2026-01-01T00:01:00Z",
                "labels": {"roundhouse.dev/job-name": "digits", "roundhouse.dev/job-uid": "u"},
                "annotations": {"kueue.x-k8s.io/retriable-in-group": "false"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "a", "name": "b", "uid": "u", "controller": true}],
                "managedFields": [{"manager": "m", "operation": "Apply", "fieldsV1": {"f:spec": {}}}],
            },
            "spec": {
                "nodeName": "n1", "readinessGates": [{"conditionType": "a"}], "schedulingGates": [{"name": "g"}],
                "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 1, "preference": {"matchFields": [
                        {"key": "metadata.name", "operator": "NotIn", "values": ["n2"]}]}}]},
                    "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "k"}]}},
                "containers": [{"name": "trainer"}], "volumes": [{"name": "v", "projected": {"sources": [{}]}}],
            },
            "status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": [
                {"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"},
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:01Z"},
            ], "containerStatuses": [{"name": "trainer", "ready": true, "restartCount": 1, "image": "i", "imageID": "i",
                "state": {"running": {"startedAt": "2026-01-01T00:00:02Z"}}}]},
        })
        .to_string();
        let full: FullPod = serde_json::from_str(&text).unwrap();
        let watched: WatchedPod = serde_json::from_str(&text).unwrap();
        assert_eq!(projection::pod(&watched.pod), projection::pod(&full));
        assert_eq!(watched.slim(), projection::pod(&full));
        assert_eq!(watched.meta().namespace, full.metadata.namespace);
        let WatchedPod { pod, .. } = watched;
        assert!(pod.metadata.managed_fields.is_none());
        let spec = pod.spec.unwrap();
        assert!(spec.volumes.is_none() && spec.affinity.is_none());
    }

    /// Go reads some times that others do not. That is a problem of one pod, and not of all.
    #[test]
    fn pod_with_an_unreadable_status_is_read_without_it() {
        let text = json!({
            "metadata": {"name": "digits-worker-1-2", "namespace": "ml", "managedFields": [{"time": "9999-12-31T23:59:59Z"}]},
            "spec": {"nodeName": "n1"},
            "status": {"phase": "Running", "startTime": "9999-12-31T23:59:59Z"},
        });
        let watched: WatchedPod = serde_json::from_str(&text.to_string()).unwrap();
        let slim = watched.slim();
        assert_eq!(slim.node.as_deref(), Some("n1"));
        assert_eq!((slim.index, slim.attempt), (Some(1), 2));
    }
}
