//! A worker that prepares on a node that is lost. The test is the scheduler, one kubelet and the node lifecycle controller.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use roundhouse_operator::watch::lost_nodes::Terms;
use roundhouse_tests::cluster::until;
use serde_json::json;

use crate::environment::{Environment, NAMESPACE, TIMEOUT, running};

/// As by default, in a fiftieth of the time.
const IMPATIENT: Terms = Terms {
    doubt: Duration::from_secs(1),
    question: Duration::from_millis(400),
};

/// Makes a node whose Ready condition says this.
async fn node(env: &Environment, name: &str, ready: &str) {
    let nodes: Api<Node> = Api::all(env.client.clone());
    let node = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let status = Patch::Merge(json!({"status": {"conditions": [{
        "type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]}}));
    let told = nodes
        .patch_status(name, &PatchParams::default(), &status)
        .await;
    told.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_preparing_worker_on_a_lost_node_is_replaced() {
    let env = Environment::new().await;
    for (name, ready) in [("n0", "True"), ("n1", "Unknown"), ("n2", "True")] {
        node(&env, name, ready).await;
    }
    let operator = env.operator_with_node_timing(IMPATIENT);
    env.apply(NAMESPACE, 3).await;
    let pods = env.pods(NAMESPACE);
    until("the pods are made", TIMEOUT, || async {
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
    let told = pods
        .patch_status("digits-worker-0-0", &PatchParams::default(), &prepared)
        .await;
    told.unwrap();

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
