//! Somebody edits the objects that a job made.

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use roundhouse_tests::cluster::until;
use serde_json::json;

use crate::stage::{NAMESPACE, SOON, Stage};

#[tokio::test(flavor = "multi_thread")]
async fn what_somebody_changed_in_service_and_policy_is_mended_once_and_what_they_added_stays() {
    let stage = Stage::new().await;
    let operator = stage.operator(None);
    stage.apply(NAMESPACE, 1).await;
    stage.trains(NAMESPACE).await;
    let services: Api<Service> = Api::namespaced(stage.client.clone(), NAMESPACE);
    let policies: Api<NetworkPolicy> = Api::namespaced(stage.client.clone(), NAMESPACE);
    let service = services.get("digits").await.unwrap();
    let policy = policies.get("digits").await.unwrap();
    let edited = PatchParams::default();
    let labels = json!({"labels": {"team": "vision"}});
    let wrong = json!({"metadata": labels, "spec": {
        "selector": {"app": "another"}, "publishNotReadyAddresses": false,
    }});
    services
        .patch("digits", &edited, &Patch::Merge(&wrong))
        .await
        .unwrap();
    let open = json!({"metadata": labels, "spec": {"ingress": [{}]}});
    policies
        .patch("digits", &edited, &Patch::Merge(&open))
        .await
        .unwrap();
    let mended = until("both are mended", SOON, || async {
        let now = services.get("digits").await?;
        let policy_now = policies.get("digits").await?;
        let is = now.spec == service.spec && policy_now.spec == policy.spec;
        Ok(is.then_some((now, policy_now)))
    });
    let (service, policy) = mended.await.unwrap();
    assert_eq!(service.labels()["team"], "vision");
    assert_eq!(policy.labels()["team"], "vision");
    // Each is mended once, and what is as it was made is left alone.
    stage.edit(&json!({"suspend": true})).await.unwrap();
    stage.reaches(NAMESPACE, "Suspended").await;
    stage.edit(&json!({"suspend": false})).await.unwrap();
    stage.trains(NAMESPACE).await;
    operator.stop().await;
    let calls = stage.server.operator_calls().unwrap();
    let count = |call: &str| calls.iter().filter(|it| *it == call).count();
    assert_eq!(count("patch services"), 1, "{calls:#?}");
    assert_eq!(count("patch networkpolicies"), 1, "{calls:#?}");
}
