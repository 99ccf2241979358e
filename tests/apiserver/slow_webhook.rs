//! An admission webhook for changes of pods that answers nothing, and that the API server passes over after its timeout.

use std::net::TcpListener;

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, PostParams};
use roundhouse_api::ConditionType;
use roundhouse_contract::labels;
use roundhouse_tests::cluster::until;
use serde_json::json;

use crate::stage::{NAMESPACE, SOON, Stage};

const NAME: &str = "silent";
/// Longer than a call waits the first time.
const TIMEOUT_SECONDS: u32 = 7;

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_webhook_for_changes_of_pods_delays_a_generation_and_is_told() {
    let stage = Stage::new().await;
    // Connections are taken by the kernel; nobody reads what they say.
    let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = silent.local_addr().unwrap().port();
    let webhook = json!({
        "metadata": {"name": NAME},
        "webhooks": [{
            "name": "silent.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "failurePolicy": "Ignore", "timeoutSeconds": TIMEOUT_SECONDS,
            "clientConfig": {"url": format!("https://127.0.0.1:{port}/")},
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE", "DELETE"], "resources": ["pods"],
            }],
        }],
    });
    let webhooks: Api<ValidatingWebhookConfiguration> = Api::all(stage.client.clone());
    let webhook = serde_json::from_value(webhook).unwrap();
    let parameters = PostParams::default();
    webhooks.create(&parameters, &webhook).await.unwrap();
    let operator = stage.operator(None);
    stage.apply(NAMESPACE, 2).await;
    let words = "IssueMembership takes longer than 5 s; an admission webhook may be slow";
    until("it is told", SOON, || async {
        stage.kubelet(NAMESPACE, None).await;
        let status = stage.job(NAMESPACE).await.status.unwrap_or_default();
        let running = status.condition(ConditionType::Running);
        Ok(running.filter(|it| it.message.contains(words)).map(drop))
    })
    .await
    .unwrap();
    until("all are told their places", SOON, || async {
        let pods = stage.all_pods(NAMESPACE).await;
        let mut told = pods
            .iter()
            .map(|pod| pod.annotations().contains_key(labels::MEMBERSHIP));
        Ok(told.all(|it| it).then_some(()))
    })
    .await
    .unwrap();

    // The same for deletions.
    stage.edit(&json!({"suspend": true})).await.unwrap();
    until("all workers are gone", SOON, || async {
        Ok(stage.all_pods(NAMESPACE).await.is_empty().then_some(()))
    })
    .await
    .unwrap();
    let parameters = DeleteParams::default();
    webhooks.delete(NAME, &parameters).await.unwrap();
    operator.stop().await;
}
