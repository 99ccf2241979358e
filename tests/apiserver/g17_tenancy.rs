//! The tenancy policy of the administrator, which decides which jobs get pods.

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use roundhouse_api::{ConditionType, TrainingJob};
use roundhouse_tests::cluster::until;
use serde_json::{Value, json};

use crate::environment::{Environment, NAMESPACE, TIMEOUT, job};
use crate::g13_faults::injection::Injection;
use crate::g13_faults::proxy::Proxy;

/// A job whose pod template has this spec.
fn with(spec: &Value) -> Value {
    let mut job = job(1);
    job["spec"]["workers"]["template"] = json!({ "spec": spec });
    job
}

/// A job whose workers mount this directory of the node.
fn mounts(path: &str) -> Value {
    with(&json!({"containers": [], "volumes": [{"name": "v", "hostPath": {"path": path}}]}))
}

async fn num_pods(env: &Environment, namespace: &str) -> usize {
    let pods = env.pods(namespace);
    let listed = pods.list(&ListParams::default()).await;
    listed.unwrap().items.len()
}

fn message_of(job: TrainingJob) -> String {
    job.status.unwrap().front().unwrap().message.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn host_path_needs_a_trusted_namespace() {
    let env = Environment::new().await;
    let policy = "
namespaces:
- selector: {trusted: 'yes'}
  allow: {hostPaths: ['/data/*']}
";
    let operator = env.operator_with_policy(policy);
    env.create(NAMESPACE, mounts("/data/images")).await;
    let refused = env.until_state(NAMESPACE, "ForbiddenByPolicy").await;
    let message = message_of(refused);
    let field = "spec.workers.template.spec.volumes[0].hostPath.path: /data/images";
    assert!(message.starts_with(field), "{message}");
    assert!(message.contains("policy.allow.hostPaths"), "{message}");
    assert_eq!(num_pods(&env, NAMESPACE).await, 0);

    let namespaces: Api<Namespace> = Api::all(env.client.clone());
    let label = |value: Value| Patch::Merge(json!({"metadata": {"labels": {"trusted": value}}}));
    let parameters = PatchParams::default();
    let trusted = label(json!("yes"));
    let labelled = namespaces.patch(NAMESPACE, &parameters, &trusted).await;
    labelled.unwrap();
    env.run_until_training(NAMESPACE).await;

    // A running job keeps its pods when its namespace loses the permission.
    let plain = label(Value::Null);
    let labelled = namespaces.patch(NAMESPACE, &parameters, &plain).await;
    labelled.unwrap();
    until("the job is not accepted any more", TIMEOUT, || async {
        let status = env.job(NAMESPACE).await.status.unwrap();
        let accepted = status.condition(ConditionType::Accepted).cloned();
        Ok(accepted.filter(|it| it.reason == "ForbiddenByPolicy"))
    })
    .await
    .unwrap();
    let status = env.job(NAMESPACE).await.status.unwrap();
    assert!(status.is_true(ConditionType::Running), "{status:#?}");
    assert_eq!(num_pods(&env, NAMESPACE).await, 1);
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn job_above_the_namespace_limit_waits_for_a_place() {
    let env = Environment::new().await;
    let operator = env.operator_with_policy("maxJobsPerNamespace: 1");
    let mut first = job(1);
    first["metadata"]["name"] = json!("first");
    env.create(NAMESPACE, first).await;
    let jobs = env.jobs(NAMESPACE);
    until("the first job is accepted", TIMEOUT, || async {
        let status = jobs.get("first").await?.status.unwrap_or_default();
        Ok(status.start_time)
    })
    .await
    .unwrap();
    env.apply(NAMESPACE, 1).await;
    let message = message_of(env.until_state(NAMESPACE, "TooManyJobs").await);
    assert!(
        message.contains("policy.maxJobsPerNamespace is 1"),
        "{message}"
    );
    // The limit applies to each namespace separately.
    env.apply("other", 1).await;
    env.until_state("other", "WaitingForWorkers").await;
    jobs.delete("first", &DeleteParams::default())
        .await
        .unwrap();
    env.until_state(NAMESPACE, "WaitingForWorkers").await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn job_waits_until_its_new_namespace_is_known() {
    let env = Environment::new().await;
    let proxy = Proxy::start(env.server.client("operator").unwrap()).await;
    let policy = "namespaces: [{selector: {team: students}, maxWorkersPerJob: 1}]";
    let operator = env.operator_with_policy_and_config(policy, proxy.config());
    env.apply(NAMESPACE, 2).await;
    env.run_until_training(NAMESPACE).await;
    proxy.traffic.begin(Injection::late("namespaces"));
    let labels = json!({"team": "students"});
    let strict = json!({"metadata": {"name": "strict", "labels": labels}});
    let namespaces: Api<Namespace> = Api::all(env.client.clone());
    let strict = serde_json::from_value(strict).unwrap();
    let made = namespaces.create(&PostParams::default(), &strict).await;
    made.unwrap();
    env.apply("strict", 2).await;
    env.until_state("strict", "ForbiddenByPolicy").await;
    assert_eq!(num_pods(&env, "strict").await, 0);
    let waited =
        operator.metric("roundhouse_operator_reconciles_total{result=\"NamespaceUnknown\"}");
    assert!(
        waited > Some(0.0),
        "the operator knew the namespace in time"
    );
    operator.stop().await;
}
