//! What a job does with fewer workers than it wants, because no more may be made.

use k8s_openapi::api::core::v1::ResourceQuota;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use roundhouse_contract::{Membership, labels};
use roundhouse_tests::cluster::until;
use serde_json::json;

use crate::stage::{NAMESPACE, SOON, Stage, job};

#[tokio::test(flavor = "multi_thread")]
async fn workers_that_a_quota_has_room_for_train_without_the_others() {
    let stage = Stage::new().await;
    allow(&stage, 3).await;
    let mut elastic = job(4);
    elastic["spec"]["workers"]["minReplicas"] = json!(2);
    let operator = stage.operator(None);
    stage.create(NAMESPACE, elastic).await;
    stage.reaches(NAMESPACE, "Refused").await;
    until("three pods are made", SOON, || async {
        Ok((stage.all_pods(NAMESPACE).await.len() == 3).then_some(()))
    })
    .await
    .unwrap();
    // All are ready when the next operator looks.
    operator.stop().await;
    stage.kubelet(NAMESPACE, None).await;
    let operator = stage.operator(None);

    let status = stage.reaches(NAMESPACE, "Training").await.status.unwrap();
    let membership = status.membership.unwrap();
    assert_eq!((membership.generation, membership.nodes), (1, 3));
    for pod in stage.all_pods(NAMESPACE).await {
        let document = pod.annotations().get(labels::MEMBERSHIP).unwrap();
        let place = Membership::parse(document).unwrap().unwrap();
        assert_eq!((place.generation, place.nodes), (1, 3));
    }
    // It is tried again and again, and that is all.
    tried(&stage, 2).await;
    let before = stage.job(NAMESPACE).await;
    let front = before.status.as_ref().unwrap().front().unwrap();
    assert_eq!((&*front.reason, &*front.status), ("Training", "True"));
    assert!(front.message.contains("exceeded quota"), "{front:?}");
    tried(&stage, 2).await;
    let after = stage.job(NAMESPACE).await;
    assert_eq!(after.resource_version(), before.resource_version());
    let events: Api<Event> = Api::namespaced(stage.client.clone(), NAMESPACE);
    let told = events.list(&ListParams::default()).await.unwrap();
    let told = told
        .iter()
        .filter(|e| e.reason.as_deref() == Some("Refused"));
    assert_eq!(told.count(), 1, "told once");
    operator.stop().await;
}

/// A quota of pods, and what its controller writes.
async fn allow(stage: &Stage, pods: u32) {
    let quotas: Api<ResourceQuota> = Api::namespaced(stage.client.clone(), NAMESPACE);
    let hard = json!({"pods": pods.to_string()});
    let quota = json!({"metadata": {"name": "few"}, "spec": {"hard": hard}});
    let quota = serde_json::from_value(quota).unwrap();
    quotas.create(&PostParams::default(), &quota).await.unwrap();
    let counted = Patch::Merge(json!({"status": {"hard": hard, "used": {"pods": "0"}}}));
    let parameters = PatchParams::default();
    quotas
        .patch_status("few", &parameters, &counted)
        .await
        .unwrap();
}

/// Waits until pods were created, or refused, so many times more.
async fn tried(stage: &Stage, times: usize) {
    let count = || {
        let calls = stage.server.operator_calls().unwrap();
        calls.iter().filter(|call| *call == "create pods").count()
    };
    let before = count();
    until("it is tried again", SOON, || async {
        Ok((count() >= before + times).then_some(()))
    })
    .await
    .unwrap();
}
