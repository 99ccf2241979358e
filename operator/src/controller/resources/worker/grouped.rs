//! A pod of a PodGroup of Kubernetes itself. It names its group in `spec.schedulingGroup`, which
//! Kubernetes has had since 1.36 and the library's pods do not have yet.

use k8s_openapi::api::core::v1::Pod;
use roundhouse_api::resource_by;
use roundhouse_contract::names;
use roundhouse_planner::JobIdentity;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::json;

/// A pod that is created with the name of its group. The API server's answer is read like that of
/// any pod.
#[derive(Clone, Debug)]
pub(crate) struct GroupedPod {
    pod: Pod,
    group: Option<String>,
}

impl GroupedPod {
    /// The pod of a job with the PodGroup of one of the job's gangs.
    pub(crate) fn of(job: &JobIdentity, gang: u32, pod: Pod) -> Self {
        Self {
            pod,
            group: Some(names::pod_group(&job.name, gang)),
        }
    }
}

impl Serialize for GroupedPod {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut pod = serde_json::to_value(&self.pod).map_err(S::Error::custom)?;
        if let Some(group) = &self.group {
            pod["spec"]["schedulingGroup"] = json!({"podGroupName": group});
        }
        pod.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for GroupedPod {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let pod = Pod::deserialize(deserializer)?;
        Ok(Self { pod, group: None })
    }
}

resource_by!(GroupedPod, Pod, pod);

#[cfg(test)]
mod tests {
    use kube::Resource;

    use super::*;

    #[test]
    fn grouped_pod_names_its_group_in_the_spec() {
        let key = JobIdentity {
            namespace: "ml".to_owned(),
            name: "digits".to_owned(),
            uid: "uid".to_owned(),
        };
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "digits-worker-0-0"},
            "spec": {"containers": []}});
        let grouped = GroupedPod::of(&key, 2, serde_json::from_value(pod.clone()).unwrap());
        let mut expected = pod;
        expected["spec"]["schedulingGroup"] = json!({"podGroupName": "digits-gang-2"});
        let written = serde_json::to_value(&grouped).unwrap();
        assert_eq!(written, expected);
        let read: GroupedPod = serde_json::from_value(written).unwrap();
        assert_eq!(read.meta().name.as_deref(), Some("digits-worker-0-0"));
        assert_eq!(
            GroupedPod::url_path(&(), Some("ml")),
            Pod::url_path(&(), Some("ml"))
        );
    }
}
