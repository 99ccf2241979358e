//! What a job does with fewer workers than it wants, because no more may be made.

use k8s_openapi::api::core::v1::ResourceQuota;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use roundhouse_contract::{Membership, labels};
use roundhouse_tests::cluster::until;
use serde_json::json;

use crate::environment::{Environment, NAMESPACE, TIMEOUT, job};

#[tokio::test(flavor = "multi_thread")]
async fn job_trains_with_the_workers_within_the_quota() {
    let env = Environment::new().await;
    allow(&env, 3).await;
    let mut elastic = job(4);
    elastic["spec"]["workers"]["minReplicas"] = json!(2);
    let operator = env.operator(None);
    env.create(NAMESPACE, elastic).await;
    env.until_state(NAMESPACE, "Refused").await;
    until("three pods are made", TIMEOUT, || async {
        Ok((env.all_pods(NAMESPACE).await.len() == 3).then_some(()))
    })
    .await
    .unwrap();
    // All are ready when the next operator looks.
    operator.stop().await;
    env.run_kubelet(NAMESPACE, None).await;
    let operator = env.operator(None);

    let status = env.until_state(NAMESPACE, "Training").await.status.unwrap();
    let membership = status.membership.unwrap();
    assert_eq!((membership.generation, membership.nodes), (1, 3));
    for pod in env.all_pods(NAMESPACE).await {
        let document = pod.annotations().get(labels::MEMBERSHIP).unwrap();
        let place = Membership::parse(document).unwrap().unwrap();
        assert_eq!((place.generation, place.nodes), (1, 3));
    }
    // It is tried again and again, and that is all.
    tried(&env, 2).await;
    let before = env.job(NAMESPACE).await;
    let front = before.status.as_ref().unwrap().front().unwrap();
    assert_eq!((&*front.reason, &*front.status), ("Training", "True"));
    assert!(front.message.contains("exceeded quota"), "{front:?}");
    tried(&env, 2).await;
    let after = env.job(NAMESPACE).await;
    assert_eq!(after.resource_version(), before.resource_version());
    let events: Api<Event> = Api::namespaced(env.client.clone(), NAMESPACE);
    let told = events.list(&ListParams::default()).await.unwrap();
    let told = told
        .iter()
        .filter(|e| e.reason.as_deref() == Some("Refused"));
    assert_eq!(told.count(), 1, "told once");
    operator.stop().await;
}

/// A quota of pods, and what its controller writes.
async fn allow(env: &Environment, pods: u32) {
    let quotas: Api<ResourceQuota> = Api::namespaced(env.client.clone(), NAMESPACE);
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
async fn tried(env: &Environment, times: usize) {
    let count = || {
        let calls = env.server.operator_calls().unwrap();
        calls.iter().filter(|call| *call == "create pods").count()
    };
    let before = count();
    until("it is tried again", TIMEOUT, || async {
        Ok((count() >= before + times).then_some(()))
    })
    .await
    .unwrap();
}
