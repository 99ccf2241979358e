//! Objects of other owners, jobs of other managers, and jobs of the same name in another namespace.

use k8s_openapi::api::core::v1::{Pod, Service};
use kube::Resource;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use roundhouse_tests::cluster::until;
use serde_json::json;

use crate::environment::{Environment, NAMESPACE, TIMEOUT, job};

#[tokio::test(flavor = "multi_thread")]
async fn equal_names_in_two_namespaces_are_independent() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    env.apply(NAMESPACE, 1).await;
    env.apply("other", 2).await;
    env.until_state(NAMESPACE, "WaitingForWorkers").await;
    env.until_state("other", "WaitingForWorkers").await;
    env.run_kubelet("other", None).await;
    env.until_state("other", "Training").await;
    let first = env.job(NAMESPACE).await.status.unwrap();
    assert!(first.membership.is_none());
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_service_is_reported_and_kept() {
    let env = Environment::new().await;
    let services: Api<Service> = Api::namespaced(env.client.clone(), NAMESPACE);
    let theirs = json!({"metadata": {"name": "digits"}, "spec": {"ports": [{"port": 80}]}});
    let theirs: Service = serde_json::from_value(theirs).unwrap();
    let before = services
        .create(&PostParams::default(), &theirs)
        .await
        .unwrap();
    let operator = env.operator(None);
    env.apply(NAMESPACE, 1).await;
    let job = env.until_state(NAMESPACE, "NameTaken").await;
    assert!(
        job.status
            .unwrap()
            .front()
            .unwrap()
            .message
            .contains("Service digits")
    );
    assert_eq!(services.get("digits").await.unwrap().meta(), before.meta());
    // The operator tries again after the other Service is deleted.
    services
        .delete("digits", &DeleteParams::default())
        .await
        .unwrap();
    env.until_state(NAMESPACE, "WaitingForWorkers").await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_pod_costs_a_worker_one_attempt() {
    let env = Environment::new().await;
    let theirs = json!({
        "metadata": {"name": "digits-worker-0-0"},
        "spec": {"containers": [{"name": "a", "image": "b"}]},
    });
    let theirs: Pod = serde_json::from_value(theirs).unwrap();
    let pods = env.pods(NAMESPACE);
    let before = pods.create(&PostParams::default(), &theirs).await.unwrap();
    let operator = env.operator(None);
    env.apply(NAMESPACE, 1).await;
    until("the next attempt exists", TIMEOUT, || async {
        Ok(pods.get_opt("digits-worker-0-1").await?)
    })
    .await
    .unwrap();
    let after = pods.get("digits-worker-0-0").await.unwrap();
    assert_eq!(after.meta(), before.meta());
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn job_of_another_manager_is_ignored() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    let mut theirs = job(1);
    theirs["spec"]["managedBy"] = json!("kueue.x-k8s.io/multikueue");
    env.create(NAMESPACE, theirs).await;
    // After the operator has handled a later job, it has also reconciled the first one.
    env.apply("other", 1).await;
    env.until_state("other", "WaitingForWorkers").await;
    assert!(env.job(NAMESPACE).await.status.is_none());
    let pods = env
        .pods(NAMESPACE)
        .list(&ListParams::default())
        .await
        .unwrap();
    assert!(pods.items.is_empty());
    operator.stop().await;
}
