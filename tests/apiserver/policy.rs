//! The administrator's policy decides which jobs get pods.

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use roundhouse_api::{ConditionType, TrainingJob};
use roundhouse_tests::cluster::until;
use serde_json::{Value, json};

use crate::faults::proxy::Proxy;
use crate::faults::trouble::Trouble;
use crate::stage::{NAMESPACE, SOON, Stage, job};

/// A job whose workers have this pod spec.
fn with(spec: &Value) -> Value {
    let mut job = job(1);
    job["spec"]["workers"]["template"] = json!({ "spec": spec });
    job
}

fn mounts(path: &str) -> Value {
    with(&json!({"containers": [], "volumes": [{"name": "v", "hostPath": {"path": path}}]}))
}

async fn num_pods(stage: &Stage, namespace: &str) -> usize {
    let pods = stage.pods(namespace);
    let listed = pods.list(&ListParams::default()).await;
    listed.unwrap().items.len()
}

fn message(job: TrainingJob) -> String {
    job.status.unwrap().front().unwrap().message.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_asks_for_the_node_gets_no_pod_until_its_namespace_may() {
    let stage = Stage::new().await;
    let policy = "
namespaces:
- selector: {trusted: 'yes'}
  allow: {hostPaths: ['/data/*']}
";
    let operator = stage.operator_with(policy);
    stage.create(NAMESPACE, mounts("/data/images")).await;
    let refused = stage.reaches(NAMESPACE, "ForbiddenByPolicy").await;
    let words = message(refused);
    let field = "spec.workers.template.spec.volumes[0].hostPath.path: /data/images";
    assert!(words.starts_with(field), "{words}");
    assert!(words.contains("policy.allow.hostPaths"), "{words}");
    assert_eq!(num_pods(&stage, NAMESPACE).await, 0);

    let namespaces: Api<Namespace> = Api::all(stage.client.clone());
    let label = |value: Value| Patch::Merge(json!({"metadata": {"labels": {"trusted": value}}}));
    let parameters = PatchParams::default();
    let trusted = label(json!("yes"));
    let labelled = namespaces.patch(NAMESPACE, &parameters, &trusted).await;
    labelled.unwrap();
    stage.trains(NAMESPACE).await;

    // What runs already is not killed when its namespace loses the right.
    let plain = label(Value::Null);
    let labelled = namespaces.patch(NAMESPACE, &parameters, &plain).await;
    labelled.unwrap();
    until("the job is not accepted any more", SOON, || async {
        let status = stage.job(NAMESPACE).await.status.unwrap();
        let accepted = status.condition(ConditionType::Accepted).cloned();
        Ok(accepted.filter(|it| it.reason == "ForbiddenByPolicy"))
    })
    .await
    .unwrap();
    let status = stage.job(NAMESPACE).await.status.unwrap();
    assert!(status.is_true(ConditionType::Running), "{status:#?}");
    assert_eq!(num_pods(&stage, NAMESPACE).await, 1);
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_for_which_its_namespace_has_no_place_begins_when_another_one_goes() {
    let stage = Stage::new().await;
    let operator = stage.operator_with("maxJobsPerNamespace: 1");
    let mut first = job(1);
    first["metadata"]["name"] = json!("first");
    stage.create(NAMESPACE, first).await;
    let jobs = stage.jobs(NAMESPACE);
    until("the first job is accepted", SOON, || async {
        let status = jobs.get("first").await?.status.unwrap_or_default();
        Ok(status.start_time)
    })
    .await
    .unwrap();
    stage.apply(NAMESPACE, 1).await;
    let words = message(stage.reaches(NAMESPACE, "TooManyJobs").await);
    assert!(words.contains("policy.maxJobsPerNamespace is 1"), "{words}");
    // Another namespace has places of its own.
    stage.apply("other", 1).await;
    stage.reaches("other", "WaitingForWorkers").await;
    jobs.delete("first", &DeleteParams::default())
        .await
        .unwrap();
    stage.reaches(NAMESPACE, "WaitingForWorkers").await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_in_a_new_namespace_waits_until_its_stricter_policy_is_known() {
    let stage = Stage::new().await;
    let proxy = Proxy::start(stage.server.client("operator").unwrap()).await;
    let policy = "namespaces: [{selector: {team: students}, maxWorkersPerJob: 1}]";
    let operator = stage.operator_with_through(policy, proxy.config());
    stage.apply(NAMESPACE, 2).await;
    stage.trains(NAMESPACE).await;
    proxy.traffic.begin(Trouble::late("namespaces"));
    let labels = json!({"team": "students"});
    let strict = json!({"metadata": {"name": "strict", "labels": labels}});
    let namespaces: Api<Namespace> = Api::all(stage.client.clone());
    let strict = serde_json::from_value(strict).unwrap();
    let made = namespaces.create(&PostParams::default(), &strict).await;
    made.unwrap();
    stage.apply("strict", 2).await;
    stage.reaches("strict", "ForbiddenByPolicy").await;
    assert_eq!(num_pods(&stage, "strict").await, 0);
    let waited =
        operator.metric("roundhouse_operator_reconciles_total{result=\"NamespaceUnknown\"}");
    assert!(waited > Some(0.0), "the namespace was told in time");
    operator.stop().await;
}
