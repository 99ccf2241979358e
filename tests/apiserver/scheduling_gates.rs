//! Jobs whose pods have a scheduling gate of a queue, as plain pods have with Kueue. The test
//! removes the gates.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch, PatchParams};
use roundhouse_tests::cluster::until;
use serde_json::{Value, json};

use crate::environment::{Environment, NAMESPACE, TIMEOUT, job};

const GATE: &str = "kueue.x-k8s.io/admission";

/// A job for Kueue. The template contains the gate that Kueue's webhook would add.
fn queued(workers: u32) -> Value {
    let mut job = job(workers);
    job["spec"]["workers"]["template"] = json!({
        "metadata": {
            "labels": {"kueue.x-k8s.io/queue-name": "research", "kueue.x-k8s.io/pod-group-name": "digits"},
            "annotations": {"kueue.x-k8s.io/pod-group-total-count": workers.to_string()},
        },
        "spec": {"schedulingGates": [{"name": GATE}]},
    });
    job
}

#[tokio::test(flavor = "multi_thread")]
async fn gated_job_waits_past_its_start_deadline() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    let mut job = queued(2);
    job["spec"]["startDeadlineSeconds"] = json!(1);
    env.create(NAMESPACE, job).await;
    let held = env.until_state(NAMESPACE, "SchedulingGated").await;
    let accepted = held.status.unwrap();
    assert!(accepted.front().unwrap().message.contains(GATE));
    let accepted = accepted.start_time.unwrap().0;
    until("the deadline is over", TIMEOUT, || async {
        let waited = jiff::Timestamp::now().duration_since(accepted);
        Ok((waited.as_secs() > 1).then_some(()))
    })
    .await
    .unwrap();
    // A new operator reconciles the job again.
    operator.stop().await;
    let operator = env.operator(None);
    let reconciles = "roundhouse_operator_reconciles_total{result=\"WaitingForWorkers\"}";
    until("the job is reconciled", TIMEOUT, || async {
        Ok(operator
            .metric(reconciles)
            .is_some_and(|n| n >= 1.0)
            .then_some(()))
    })
    .await
    .unwrap();
    env.until_state(NAMESPACE, "SchedulingGated").await;

    // All workers become ready while no operator runs, because the deadline of the test is short.
    operator.stop().await;
    let pods = env.pods(NAMESPACE);
    for pod in pods.list(&ListParams::default()).await.unwrap() {
        let free = Patch::Merge(json!({"spec": {"schedulingGates": null}}));
        let (name, parameters) = (pod.name_any(), PatchParams::default());
        let free = pods.patch(&name, &parameters, &free).await.unwrap();
        assert_eq!(free.labels()["kueue.x-k8s.io/queue-name"], "research");
    }
    env.run_kubelet(NAMESPACE, None).await;
    let operator = env.operator(None);
    let status = env.until_state(NAMESPACE, "Training").await.status.unwrap();
    assert!(
        status.start_time.unwrap().0 > accepted,
        "the start time is that of the removal of the gates"
    );
    assert_eq!(status.incidents.total, 0);

    // Kueue's finalizer keeps the pods: without it, pods that have no node vanish when they are
    // deleted.
    set_finalizers(&pods, json!(["kueue.x-k8s.io/managed"])).await;
    // The job fails and gets no more pods, so the queue may free their quota.
    env.edit(&json!({"activeDeadlineSeconds": 1}))
        .await
        .unwrap();
    env.until_state(NAMESPACE, "DeadlineExceeded").await;
    until("the annotation for the queue is set", TIMEOUT, || async {
        let pods = pods.list(&ListParams::default()).await?;
        let mut annotations = pods.iter().map(ResourceExt::annotations);
        let retriable = |it: &BTreeMap<_, _>| it.get("kueue.x-k8s.io/retriable-in-group").cloned();
        let ends_group = annotations.any(|it| retriable(it).as_deref() == Some("false"));
        Ok(ends_group.then_some(()))
    })
    .await
    .unwrap();
    set_finalizers(&pods, json!(null)).await;
    operator.stop().await;
}

/// Replaces the finalizers of all pods.
async fn set_finalizers(pods: &Api<Pod>, finalizers: Value) {
    let patch = Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
    for pod in pods.list(&ListParams::default()).await.unwrap() {
        let (name, parameters) = (pod.name_any(), PatchParams::default());
        pods.patch(&name, &parameters, &patch).await.unwrap();
    }
}
