//! A job that gets fewer workers than it asks for, because of a quota of pods.

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
    create_quota(&env, 3).await;
    let mut elastic = job(4);
    elastic["spec"]["workers"]["minReplicas"] = json!(2);
    let operator = env.operator(None);
    env.create(NAMESPACE, elastic).await;
    env.until_state(NAMESPACE, "Refused").await;
    until("three pods exist", TIMEOUT, || async {
        Ok((env.all_pods(NAMESPACE).await.len() == 3).then_some(()))
    })
    .await
    .unwrap();
    // All workers become ready while no operator runs.
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
    // The operator only keeps trying to create the missing pod.
    until_tried(&env, 2).await;
    let before = env.job(NAMESPACE).await;
    let front = before.status.as_ref().unwrap().front().unwrap();
    assert_eq!((&*front.reason, &*front.status), ("Training", "True"));
    assert!(front.message.contains("exceeded quota"), "{front:?}");
    until_tried(&env, 2).await;
    let after = env.job(NAMESPACE).await;
    assert_eq!(after.resource_version(), before.resource_version());
    let events: Api<Event> = Api::namespaced(env.client.clone(), NAMESPACE);
    let all = events.list(&ListParams::default()).await.unwrap();
    let refused = all
        .iter()
        .filter(|e| e.reason.as_deref() == Some("Refused"));
    assert_eq!(refused.count(), 1, "the event is published once");
    operator.stop().await;
}

/// Creates a quota of pods, with the status that the quota controller writes.
async fn create_quota(env: &Environment, pods: u32) {
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

/// Waits until the operator has sent this many more requests to create a pod.
async fn until_tried(env: &Environment, times: usize) {
    let count = || {
        let calls = env.server.operator_calls().unwrap();
        calls.iter().filter(|call| *call == "create pods").count()
    };
    let before = count();
    until("the operator tries again", TIMEOUT, || async {
        Ok((count() >= before + times).then_some(()))
    })
    .await
    .unwrap();
}
