//! Jobs that the operator does not accept: it reports the reason and still manages them.

use http::Request;
use http::header::CONTENT_TYPE;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Resource;
use kube::api::{Api, ListParams, Patch, PatchParams};
use roundhouse_api::lenient::LenientJob;
use roundhouse_api::{ConditionType, TrainingJob, TrainingJobStatus, shallow};
use roundhouse_contract::labels;
use roundhouse_tests::cluster::until;
use serde_json::{Value, json};

use crate::environment::{Environment, NAMESPACE, TIMEOUT, job};

const ENUM: &str =
    "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/cleanPodPolicy/enum/-";

/// Makes the job one of a newer version, whose schema has one more value of an enum.
async fn make_unreadable(env: &Environment) {
    let crds: Api<CustomResourceDefinition> = Api::all(env.client.clone());
    let parameters = PatchParams::default();
    let value = json!([{"op": "add", "path": ENUM, "value": "Later"}]);
    let patch: Patch<()> = Patch::Json(serde_json::from_value(value).unwrap());
    let name = "trainingjobs.roundhouse.dev";
    crds.patch(name, &parameters, &patch).await.unwrap();
    until("the newer schema is served", TIMEOUT, || async {
        Ok(edit(env, json!({"cleanPodPolicy": "Later"})).await.ok())
    })
    .await
    .unwrap();
}

async fn edit(env: &Environment, spec: Value) -> kube::Result<LenientJob> {
    let jobs: Api<LenientJob> = Api::namespaced(env.client.clone(), NAMESPACE);
    let patch = Patch::Merge(json!({"spec": spec}));
    jobs.patch("digits", &PatchParams::default(), &patch).await
}

/// Waits until the job's status satisfies `is`, and returns it.
async fn until_status(
    env: &Environment,
    what: &str,
    is: impl Fn(&TrainingJobStatus) -> bool,
) -> TrainingJobStatus {
    let jobs: Api<LenientJob> = Api::namespaced(env.client.clone(), NAMESPACE);
    until(what, TIMEOUT, || async {
        let status = jobs.get("digits").await?.job.status.unwrap_or_default();
        Ok(is(&status).then_some(status))
    })
    .await
    .unwrap()
}

fn is_not_accepted(status: &TrainingJobStatus) -> bool {
    let accepted = status.condition(ConditionType::Accepted);
    accepted.is_some_and(|it| it.status == "False" && it.message.contains("spec.cleanPodPolicy"))
}

/// JSON with more levels than a JSON parser accepts.
fn deep() -> String {
    let levels = 5_000;
    "{\"f:a\":".repeat(levels) + "{}" + &"}".repeat(levels)
}

/// Creates an object, in which `deep()` replaces the string `DEEP`. The response is read as text,
/// because kube cannot parse it.
async fn send(env: &Environment, path: &str, object: &Value) {
    let text = object.to_string().replace("\"DEEP\"", &deep());
    let request = Request::post(path).header(CONTENT_TYPE, "application/json");
    let request = request.body(text.into_bytes()).unwrap();
    env.client.request_text(request).await.unwrap();
}

/// Creates a job whose options are too deeply nested.
async fn create_nested(env: &Environment, name: &str) {
    let mut job = job(1);
    job["metadata"]["name"] = json!(name);
    job["spec"]["trainer"]["model"] = json!({"name": "custom"});
    job["spec"]["trainer"]["options"] = json!({"deep": "DEEP"});
    let path = format!("/apis/roundhouse.dev/v1alpha1/namespaces/{NAMESPACE}/trainingjobs");
    send(env, &path, &job).await;
}

/// Waits until the operator does not accept the job, with a message that contains `reason`.
async fn until_not_accepted(env: &Environment, name: &str, reason: &str) {
    let jobs: Api<TrainingJob> = Api::namespaced(shallow(env.client.clone()), NAMESPACE);
    until("the job is not accepted", TIMEOUT, || async {
        let status = jobs.get(name).await?.status.unwrap_or_default();
        let accepted = status.condition(ConditionType::Accepted);
        let has_reason = |it: &Condition| it.message.contains(reason);
        Ok(accepted.is_some_and(has_reason).then_some(()))
    })
    .await
    .unwrap();
}

async fn until_nested_not_accepted(env: &Environment, name: &str) {
    until_not_accepted(env, name, "more than 32 levels deep").await;
}

/// Creates a job of 1.2 MiB.
async fn create_large(env: &Environment, name: &str) {
    let mut job = job(1);
    job["metadata"]["name"] = json!(name);
    let args: Vec<String> = (0..10).map(|_| "x".repeat(125_000)).collect();
    let container = json!({"name": "trainer", "args": args});
    job["spec"]["workers"]["template"] = json!({"spec": {"containers": [container]}});
    env.create(NAMESPACE, job).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn oversized_job_is_refused_while_others_train() {
    let env = Environment::new().await;
    // The operator gets the first job in a list and the second one in a watch.
    create_large(&env, "listed").await;
    let operator = env.operator(None);
    let reason = "the operator manages jobs of at most 256 KiB";
    until_not_accepted(&env, "listed", reason).await;
    create_large(&env, "watched").await;
    until_not_accepted(&env, "watched", reason).await;
    env.apply("other", 2).await;
    env.run_until_training("other").await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deeply_nested_job_is_refused_while_others_train() {
    let env = Environment::new().await;
    // The operator gets the first job in a list and the second one in a watch.
    create_nested(&env, "listed").await;
    let operator = env.operator(None);
    until_nested_not_accepted(&env, "listed").await;
    create_nested(&env, "watched").await;
    until_nested_not_accepted(&env, "watched").await;
    env.apply("other", 2).await;
    env.run_until_training("other").await;
    operator.stop().await;
}

/// Whether the API server has stored the deeply nested managed fields of an object.
async fn is_deep(env: &Environment, path: &str) -> bool {
    let request = Request::get(path).body(Vec::new()).unwrap();
    let text = env.client.request_text(request).await.unwrap();
    text.contains(&"{\"f:a\":".repeat(200))
}

#[tokio::test(flavor = "multi_thread")]
async fn deeply_nested_pod_does_not_stop_other_jobs() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    let managed = json!([{
        "manager": "a-tenant", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": "DEEP",
    }]);
    let labels = json!({labels::MANAGED_BY: labels::FIELD_MANAGER});
    let metadata = json!({"name": "deep", "labels": labels, "managedFields": managed});
    let container = json!({"name": "a", "image": "a"});
    let pods = format!("/api/v1/namespaces/{NAMESPACE}/pods");
    let pod = json!({"metadata": metadata, "spec": {"containers": [container]}});
    send(&env, &pods, &pod).await;
    assert!(is_deep(&env, &format!("{pods}/deep")).await);
    env.apply("other", 2).await;
    env.run_until_training("other").await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unreadable_job_trains_suspends_and_recovers() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    env.apply(NAMESPACE, 2).await;
    env.run_until_training(NAMESPACE).await;
    make_unreadable(&env).await;
    let status = until_status(&env, "the field is named", is_not_accepted).await;
    assert!(status.is_true(ConditionType::Running), "{status:#?}");
    let workers = || async {
        let pods = env.pods(NAMESPACE).list(&ListParams::default()).await?;
        Ok::<_, kube::Error>(pods.items)
    };
    let pods = workers().await.unwrap();
    let mut leaving = pods
        .iter()
        .filter_map(|pod| pod.meta().deletion_timestamp.as_ref());
    assert_eq!((pods.len(), leaving.next()), (2, None));

    edit(&env, json!({"suspend": true})).await.unwrap();
    let suspended = |status: &TrainingJobStatus| status.is_true(ConditionType::Suspended);
    let status = until_status(&env, "it is suspended", suspended).await;
    assert!(is_not_accepted(&status), "{status:#?}");
    until("all workers are gone", TIMEOUT, || async {
        Ok(workers().await?.is_empty().then_some(()))
    })
    .await
    .unwrap();

    edit(&env, json!({"suspend": false, "cleanPodPolicy": "All"}))
        .await
        .unwrap();
    env.run_until_training(NAMESPACE).await;
    operator.stop().await;
}
