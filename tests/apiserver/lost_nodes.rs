//! Workers on lost nodes. The test plays the scheduler, the kubelets and the node lifecycle
//! controller.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use roundhouse_operator::watch::lost_nodes::NodeTiming;
use roundhouse_tests::cluster::until;
use serde_json::json;

use crate::environment::{Environment, NAMESPACE, TIMEOUT, job, running};

/// One fiftieth of the default times.
const SHORT: NodeTiming = NodeTiming {
    doubt: Duration::from_secs(1),
    interval: Duration::from_millis(400),
};

/// Creates a node whose Ready condition has the status `ready`.
async fn create_node(env: &Environment, name: &str, ready: &str) {
    let nodes: Api<Node> = Api::all(env.client.clone());
    let node = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let status = Patch::Merge(json!({"status": {"conditions": [{
        "type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]}}));
    let patched = nodes
        .patch_status(name, &PatchParams::default(), &status)
        .await;
    patched.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_preparing_worker_on_a_lost_node_is_replaced() {
    let env = Environment::new().await;
    for (name, ready) in [("n0", "True"), ("n1", "Unknown"), ("n2", "True")] {
        create_node(&env, name, ready).await;
    }
    let operator = env.operator_with_node_timing(SHORT);
    env.apply(NAMESPACE, 3).await;
    let pods = env.pods(NAMESPACE);
    until("the pods exist", TIMEOUT, || async {
        Ok((pods.list(&ListParams::default()).await?.items.len() == 3).then_some(()))
    })
    .await
    .unwrap();
    for index in 0..3 {
        let (pod, node) = (format!("digits-worker-{index}-0"), format!("n{index}"));
        env.bind(&pod, &node).await;
    }
    let first = pods.get("digits-worker-0-0").await.unwrap();
    let prepared = Patch::Merge(running(&first));
    let patched = pods
        .patch_status("digits-worker-0-0", &PatchParams::default(), &prepared)
        .await;
    patched.unwrap();

    let lost = "digits-worker-1-0";
    until(
        "the worker on the lost node is replaced",
        TIMEOUT,
        || async {
            let is_new = pods.get_opt("digits-worker-1-1").await?.is_some();
            let old = pods.get_opt(lost).await?;
            let goes = old.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some());
            Ok((is_new && goes).then_some(()))
        },
    )
    .await
    .unwrap();
    for stays in ["digits-worker-0-0", "digits-worker-2-0"] {
        let pod = pods.get(stays).await.unwrap();
        assert_eq!(pod.metadata.deletion_timestamp, None, "{stays}");
    }
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_on_a_lost_node_is_replaced_while_others_train() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    let mut elastic = job(2);
    elastic["spec"]["workers"]["minReplicas"] = json!(1);
    env.create(NAMESPACE, elastic).await;
    until("both train", TIMEOUT, || async {
        env.run_kubelet(NAMESPACE, None).await;
        let status = env.job(NAMESPACE).await.status.unwrap_or_default();
        Ok(status.membership.filter(|m| m.nodes == 2))
    })
    .await
    .unwrap();
    let before = env.until_state(NAMESPACE, "Training").await.status.unwrap();
    let before = before.membership.unwrap().generation;
    env.bind("digits-worker-1-0", "lost").await;
    // The node lifecycle controller changes only the readiness of the pod.
    let conditions = json!([
        {"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]);
    let lost = Patch::Merge(json!({"status": {"conditions": conditions}}));
    let pods = env.pods(NAMESPACE);
    pods.patch_status("digits-worker-1-0", &PatchParams::default(), &lost)
        .await
        .unwrap();
    until(
        "the next attempt exists, and the other worker continues",
        TIMEOUT,
        || async {
            let next = env.pods(NAMESPACE).get_opt("digits-worker-1-1").await?;
            let membership = env.job(NAMESPACE).await.status.unwrap().membership.unwrap();
            let alone = membership.generation > before && membership.nodes == 1;
            Ok((next.is_some() && alone).then_some(()))
        },
    )
    .await
    .unwrap();
    let old = env.pods(NAMESPACE).get("digits-worker-1-0").await.unwrap();
    assert!(
        old.metadata.deletion_timestamp.is_some(),
        "the operator deletes the pod without waiting for its end"
    );
    let status = env.job(NAMESPACE).await.status.unwrap();
    assert_eq!(status.incidents.total, 0);
    operator.stop().await;
}
