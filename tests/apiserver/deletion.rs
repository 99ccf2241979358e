//! Deletion of jobs and namespaces. In two tests the garbage collector of Kubernetes runs.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PropagationPolicy};
use roundhouse_tests::cluster::until;
use serde_json::json;

use crate::environment::{Environment, NAMESPACE, TIMEOUT, job};

/// Refused creations of pods.
const FORBIDDEN: &str =
    "roundhouse_operator_api_calls_total{code=\"403\",resource=\"pods\",verb=\"create\"}";

/// Starts the garbage collector of Kubernetes.
fn start_collector(env: &Environment) {
    let kubeconfig = env.server.kubeconfig("test").unwrap();
    let arguments = [
        &*format!("--kubeconfig={}", kubeconfig.display()),
        "--leader-elect=false",
        "--secure-port=0",
        "--controllers=garbage-collector-controller",
    ];
    let program = "kube-controller-manager";
    env.server.run(program, &arguments).unwrap();
}

async fn policies(env: &Environment) -> Vec<NetworkPolicy> {
    let policies: Api<NetworkPolicy> = Api::namespaced(env.client.clone(), NAMESPACE);
    let all = policies.list(&ListParams::default()).await;
    all.unwrap().items
}

/// Deletes a job. While its workers terminate, a second NetworkPolicy with the same rules covers
/// them.
async fn deletion_keeps_a_policy(how: PropagationPolicy) {
    let env = Environment::new().await;
    start_collector(&env);
    let operator = env.operator(None);
    env.apply(NAMESPACE, 2).await;
    env.run_until_training(NAMESPACE).await;
    for pod in env.all_pods(NAMESPACE).await {
        env.bind(&pod.name_any(), "n1").await;
    }
    let [before] = &policies(&env).await[..] else {
        panic!("a job has one NetworkPolicy");
    };
    let parameters = DeleteParams {
        propagation_policy: Some(how),
        ..DeleteParams::default()
    };
    let jobs = env.jobs(NAMESPACE);
    jobs.delete("digits", &parameters).await.unwrap();
    let after = until("there is another policy", TIMEOUT, || async {
        let all = policies(&env).await;
        let is_other = all.len() == 1 && all[0].uid() != before.uid();
        Ok(is_other.then(|| all[0].clone()))
    });
    let after = after.await.unwrap();
    assert_eq!(after.spec, before.spec);
    // The policy exists exactly as long as the pods, even without an operator.
    operator.stop().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let all = env.all_pods(NAMESPACE).await;
    let terminates = |pod: &Pod| pod.metadata.deletion_timestamp.is_some();
    assert!(all.len() == 2 && all.iter().all(terminates), "{all:#?}");
    let uids = |all: &[NetworkPolicy]| all.iter().map(ResourceExt::uid).collect::<Vec<_>>();
    assert_eq!(uids(&policies(&env).await), [after.uid()]);
    env.remove_terminating_pods(NAMESPACE).await;
    until("nothing is left", TIMEOUT, || async {
        Ok(policies(&env).await.is_empty().then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn background_deletion_keeps_a_policy_for_leaving_pods() {
    deletion_keeps_a_policy(PropagationPolicy::Background).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn foreground_deletion_keeps_a_policy_for_leaving_pods() {
    deletion_keeps_a_policy(PropagationPolicy::Foreground).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn terminating_namespace_gets_no_pods() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    env.apply(NAMESPACE, 2).await;
    env.run_until_training(NAMESPACE).await;
    let namespaces: Api<Namespace> = Api::all(env.client.clone());
    let deleted = namespaces.delete(NAMESPACE, &DeleteParams::default()).await;
    deleted.unwrap();
    // The test plays the namespace controller, which deletes the pods first.
    let now = DeleteParams::default().grace_period(0);
    let pods = env.pods(NAMESPACE);
    pods.delete("digits-worker-1-0", &now).await.unwrap();
    env.apply("other", 1).await;
    env.run_until_training("other").await;
    // The first attempts have no pauses between them, because writing the status causes another
    // reconcile. The pauses after that are at least 1 s and 2 s.
    operator.until_metric(FORBIDDEN, 4.0).await;
    let since = Instant::now();
    operator.until_metric(FORBIDDEN, 6.0).await;
    let waited = since.elapsed();
    assert!(waited >= Duration::from_secs(3), "{waited:?}");

    pods.delete("digits-worker-0-0", &now).await.unwrap();
    let jobs = env.jobs(NAMESPACE);
    jobs.delete("digits", &DeleteParams::default())
        .await
        .unwrap();
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn edit_during_deletion_creates_no_pods() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    let mut kept = job(2);
    kept["metadata"]["finalizers"] = json!(["example.com/archive"]);
    env.create(NAMESPACE, kept).await;
    env.run_until_training(NAMESPACE).await;
    let before = env.uids_of_staying_pods(NAMESPACE).await;
    let jobs = env.jobs(NAMESPACE);
    jobs.delete("digits", &DeleteParams::default())
        .await
        .unwrap();
    let deleting = "roundhouse_operator_reconciles_total{result=\"Deleting\"}";
    operator.until_metric(deleting, 1.0).await;
    let reconciles = operator.metric(deleting).unwrap();
    env.edit(&json!({"workers": {"replicas": 5}}))
        .await
        .unwrap();
    operator.until_metric(deleting, reconciles + 1.0).await;
    assert_eq!(env.uids_of_staying_pods(NAMESPACE).await, before);
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    jobs.patch("digits", &PatchParams::default(), &free)
        .await
        .unwrap();
    until("the job is gone", TIMEOUT, || async {
        Ok(jobs.get_opt("digits").await?.is_none().then_some(()))
    })
    .await
    .unwrap();
    operator.stop().await;
}
