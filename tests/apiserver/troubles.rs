//! What befalls the operator's surroundings: rights, its own CustomResourceDefinition, its Lease, a namespace; and users who
//! change their mind.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use roundhouse_operator::runtime::leader_election::Terms;
use roundhouse_tests::cluster::until;
use serde_json::{Value, json};

use crate::environment::{Environment, NAMESPACE, Operator, TIMEOUT, job};
use crate::faults::proxy::Proxy;

/// Pods that the operator tried to create and was not allowed to.
const FORBIDDEN: &str =
    "roundhouse_operator_api_calls_total{code=\"403\",resource=\"pods\",verb=\"create\"}";

/// Waits until a series has at least this value.
async fn counts(operator: &Operator, series: &str, least: f64) {
    until(series, TIMEOUT, || async {
        Ok(operator.metric(series).filter(|value| *value >= least))
    })
    .await
    .unwrap();
}

/// UIDs of the pods that stay.
async fn staying(env: &Environment) -> BTreeSet<String> {
    let pods = env.pods(NAMESPACE).list(&ListParams::default()).await;
    let pods = pods.unwrap().items.into_iter();
    let staying = pods.filter(|pod| pod.metadata.deletion_timestamp.is_none());
    staying.filter_map(|pod| pod.uid()).collect()
}

/// Rights of a user: everything, but of creations only those of these kinds.
async fn may_create(env: &Environment, kinds: &[&str]) {
    let role = json!({"metadata": {"name": "limited"}, "rules": [
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch", "patch", "update", "delete"]},
        {"apiGroups": ["*"], "resources": kinds, "verbs": ["create"]},
    ]});
    let roles: Api<ClusterRole> = Api::all(env.client.clone());
    let parameters = PatchParams::apply("test");
    let mut role: Value = role;
    role["apiVersion"] = json!("rbac.authorization.k8s.io/v1");
    role["kind"] = json!("ClusterRole");
    let applied = roles
        .patch("limited", &parameters, &Patch::Apply(role))
        .await;
    applied.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_permission_is_reported_until_granted() {
    let env = Environment::new().await;
    let needed = ["services", "networkpolicies", "events"];
    may_create(&env, &needed).await;
    let binding = json!({
        "metadata": {"name": "limited"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "limited"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "limited"}],
    });
    let binding = serde_json::from_value(binding).unwrap();
    let bindings: Api<ClusterRoleBinding> = Api::all(env.client.clone());
    let bound = bindings.create(&PostParams::default(), &binding).await;
    bound.unwrap();
    let mut config = env.server.config("test").unwrap();
    config.auth_info.impersonate = Some("limited".to_owned());
    let operator = env.operator_of_namespace(config, NAMESPACE);
    env.apply(NAMESPACE, 1).await;
    let refused = env.until_state(NAMESPACE, "Refused").await.status.unwrap();
    let message = &refused.front().unwrap().message;
    assert!(
        message.contains("cannot create resource \"pods\""),
        "{message}"
    );

    may_create(&env, &[&needed[..], &["pods"]].concat()).await;
    env.until_state(NAMESPACE, "WaitingForWorkers").await;
    env.run_until_training(NAMESPACE).await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn crd_added_again_keeps_pods_and_runs_new_jobs() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    env.apply(NAMESPACE, 2).await;
    env.run_until_training(NAMESPACE).await;
    let before = staying(&env).await;

    let definitions: Api<CustomResourceDefinition> = Api::all(env.client.clone());
    let name = "trainingjobs.roundhouse.dev";
    let removed = definitions.delete(name, &DeleteParams::default()).await;
    removed.unwrap();
    until("the definition is gone", TIMEOUT, || async {
        Ok(definitions.get_opt(name).await?.is_none().then_some(()))
    })
    .await
    .unwrap();
    counts(
        &operator,
        "roundhouse_operator_watch_restarts_total{resource=\"trainingjobs\"}",
        1.0,
    )
    .await;
    env.install_crd().await;
    env.apply("other", 1).await;
    env.until_state("other", "WaitingForWorkers").await;
    // Kubernetes' garbage collector deletes them, since their job is gone. The operator leaves that to it.
    assert_eq!(staying(&env).await, before);
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leader_that_cannot_renew_exits_and_another_leads() {
    let terms = Terms {
        duration: Duration::from_secs(6),
        renew_within: Duration::from_secs(4),
        period: Duration::from_millis(300),
    };
    let env = Environment::new().await;
    let proxy = Proxy::start(env.server.client("operator").unwrap()).await;
    let first = env.candidate_with_config(proxy.config(), terms);
    counts(&first, "roundhouse_operator_leader", 1.0).await;
    let second = env.candidate(terms);
    env.apply(NAMESPACE, 2).await;
    env.run_until_training(NAMESPACE).await;
    let before = staying(&env).await;

    proxy.traffic.refuse("leases");
    counts(&second, "roundhouse_operator_leader", 1.0).await;
    let error = first.wait_for_exit().await.unwrap_err();
    assert!(error.to_string().contains("is lost"), "{error}");
    let job = env.until_state(NAMESPACE, "Training").await;
    let status = job.status.unwrap();
    assert_eq!(status.membership.unwrap().generation, 1);
    assert_eq!(status.incidents.total, 0);
    assert_eq!(staying(&env).await, before);
    second.stop().await;
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
    // The test is the namespace controller, which deletes the pods first.
    let now = DeleteParams::default().grace_period(0);
    let pods = env.pods(NAMESPACE);
    pods.delete("digits-worker-1-0", &now).await.unwrap();
    env.apply("other", 1).await;
    env.run_until_training("other").await;
    // The first ones follow each other, because what is told wakes the job once more. Then pauses are at least 1 and 2 s.
    counts(&operator, FORBIDDEN, 4.0).await;
    let since = Instant::now();
    counts(&operator, FORBIDDEN, 6.0).await;
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
async fn last_of_many_suspension_edits_wins() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    env.apply(NAMESPACE, 2).await;
    env.run_until_training(NAMESPACE).await;
    for suspend in [true, false].repeat(50) {
        env.edit(&json!({"suspend": suspend})).await.unwrap();
    }
    until("both workers train", TIMEOUT, || async {
        env.run_kubelet(NAMESPACE, None).await;
        let status = env.job(NAMESPACE).await.status.unwrap_or_default();
        let is_suspended = status.is_true(roundhouse_api::ConditionType::Suspended);
        let trains = status.state.as_deref() == Some("Training") && !is_suspended;
        Ok((trains && staying(&env).await.len() == 2).then_some(()))
    })
    .await
    .unwrap();
    let status = env.job(NAMESPACE).await.status.unwrap();
    assert_eq!(status.incidents.total, 0);
    assert_eq!(status.membership.unwrap().nodes, 2);
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
    let before = staying(&env).await;
    let jobs = env.jobs(NAMESPACE);
    jobs.delete("digits", &DeleteParams::default())
        .await
        .unwrap();
    let deleting = "roundhouse_operator_reconciles_total{result=\"Deleting\"}";
    counts(&operator, deleting, 1.0).await;
    let looks = operator.metric(deleting).unwrap();
    env.edit(&json!({"workers": {"replicas": 5}}))
        .await
        .unwrap();
    counts(&operator, deleting, looks + 1.0).await;
    assert_eq!(staying(&env).await, before);
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
