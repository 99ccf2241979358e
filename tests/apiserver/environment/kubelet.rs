//! The kubelets and the scheduler of a test, which consist of patches.

use k8s_openapi::api::core::v1::{Binding, Pod};
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use roundhouse_contract::{Membership, Progress, TerminationMessage, labels, termination::Reason};
use serde_json::{Value, json};

use super::{Environment, NAMESPACE};

impl Environment {
    /// Binds a pod to a node, as the scheduler does.
    pub(crate) async fn bind(&self, pod: &str, node: &str) {
        let target = json!({"apiVersion": "v1", "kind": "Node", "name": node});
        let binding = json!({"metadata": {"name": pod}, "target": target});
        let binding: Binding = serde_json::from_value(binding).unwrap();
        let body = serde_json::to_vec(&binding).unwrap();
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods");
        let request = kube::core::Request::new(path);
        let request = request.create_subresource("binding", pod, &PostParams::default(), body);
        let bound: kube::Result<Value> = self.client.request(request.unwrap()).await;
        bound.unwrap();
    }

    /// Reports that the container of a pod has terminated.
    pub(crate) async fn end_container(&self, name: &str, code: i32, reason: Reason) {
        let pods = self.pods(NAMESPACE);
        let pod = pods.get(name).await.unwrap();
        let patch = Patch::Merge(ended(&pod, code, reason));
        let patched = pods
            .patch_status(name, &PatchParams::default(), &patch)
            .await;
        patched.unwrap();
    }

    /// One pass of all kubelets: every pod without scheduling gates that has not terminated runs
    /// and is ready. With `end`, the containers of pods with a membership terminate that way.
    pub(crate) async fn run_kubelet(&self, namespace: &str, end: Option<(i32, Reason)>) {
        for pod in self.all_pods(namespace).await {
            let status = pod.status.clone().unwrap_or_default();
            let trains = pod.annotations().contains_key(labels::MEMBERSHIP);
            let phase = status.phase.as_deref().unwrap_or_default();
            let gates = pod
                .spec
                .as_ref()
                .and_then(|spec| spec.scheduling_gates.as_ref());
            let patch = match (phase, end) {
                _ if gates.is_some_and(|gates| !gates.is_empty()) => continue,
                ("Succeeded" | "Failed", _) => continue,
                (_, Some((code, reason))) if trains => ended(&pod, code, reason),
                ("Running", _) => continue,
                _ => running(&pod),
            };
            let (pods, name) = (self.pods(namespace), pod.name_any());
            let (parameters, patch) = (PatchParams::default(), Patch::Merge(&patch));
            // Ignored: the operator may have deleted the pod at the same time.
            let _ = pods.patch_status(&name, &parameters, &patch).await;
        }
    }

    /// Deletes the terminating pods, whose containers have now terminated.
    pub(crate) async fn remove_terminating_pods(&self, namespace: &str) {
        let now = DeleteParams::default().grace_period(0);
        let mut leaving = self.all_pods(namespace).await;
        leaving.retain(|pod| pod.metadata.deletion_timestamp.is_some());
        for pod in leaving {
            // Ignored: the pod may be gone already.
            let _ = self.pods(namespace).delete(&pod.name_any(), &now).await;
        }
    }

    /// Reports that the container of a pod has crashed and that the kubelet has restarted it.
    pub(crate) async fn crash_container(&self, name: &str) {
        self.end_container(name, 1, Reason::Crashed).await;
        self.restart_container(name).await;
    }

    /// Reports that the kubelet has restarted the terminated container of a pod.
    pub(crate) async fn restart_container(&self, name: &str) {
        let (pods, parameters) = (self.pods(NAMESPACE), PatchParams::default());
        let pod = pods.get(name).await.unwrap();
        let again = Patch::Merge(restarted(&pod).unwrap());
        pods.patch_status(name, &parameters, &again).await.unwrap();
    }
}

/// The status of a pod that runs and is ready.
pub(crate) fn running(pod: &Pod) -> Value {
    let now = jiff::Timestamp::now().to_string();
    json!({"status": {
        "phase": "Running", "podIP": "127.0.0.9",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [container(pod, &json!({"running": {"startedAt": now}}), true)],
    }})
}

/// The status of a pod whose container has terminated.
pub(crate) fn ended(pod: &Pod, code: i32, reason: Reason) -> Value {
    let place = pod.annotations().get(labels::MEMBERSHIP);
    let place = place.and_then(|text| Membership::parse(text).ok().flatten());
    let progress = Progress {
        step: 9,
        total_steps: 9,
        ..Progress::default()
    };
    let message = TerminationMessage {
        reason,
        rank: place.as_ref().map(|place| place.rank(0)),
        generation: place.map_or(0, |place| place.generation),
        step: 9,
        message: "the message of the process".to_owned(),
        progress: Some(progress),
    };
    let now = jiff::Timestamp::from_second(jiff::Timestamp::now().as_second()).unwrap();
    let state = json!({"terminated": {
        "exitCode": code, "reason": "Error", "finishedAt": now.to_string(),
        "message": message.to_json().unwrap(),
    }});
    let phase = if code == 0 { "Succeeded" } else { "Running" };
    json!({"status": {
        "phase": phase,
        "conditions": [{"type": "Ready", "status": "False"}],
        "containerStatuses": [container(pod, &state, false)],
    }})
}

/// The status of a pod whose failed container was restarted; `None` if no container has failed.
pub(crate) fn restarted(pod: &Pod) -> Option<Value> {
    let status = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    let ended = status.state.as_ref()?.terminated.as_ref()?;
    if ended.exit_code == 0 {
        return None;
    }
    let now = jiff::Timestamp::now().to_string();
    Some(json!({"status": {
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": status.name, "image": "i", "imageID": "i", "ready": true,
            "restartCount": status.restart_count + 1, "state": {"running": {"startedAt": now}},
            "lastState": {"terminated": ended}}],
    }}))
}

fn container(pod: &Pod, state: &Value, ready: bool) -> Value {
    let statuses = pod
        .status
        .as_ref()
        .and_then(|status| status.container_statuses.as_ref());
    let restarts = statuses
        .and_then(|all| all.first())
        .map_or(0, |first| first.restart_count);
    json!({"name": "trainer", "image": "i", "imageID": "i", "ready": ready,
        "restartCount": restarts, "state": state})
}
