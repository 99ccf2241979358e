//! Jobs that the operator does not accept are managed all the same.

use http::Request;
use http::header::CONTENT_TYPE;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Resource;
use kube::api::{Api, ListParams, Patch, PatchParams};
use roundhouse_api::unreadable::Guarded;
use roundhouse_api::{ConditionType, TrainingJob, TrainingJobStatus, shallow};
use roundhouse_contract::labels;
use roundhouse_tests::cluster::until;
use serde_json::{Value, json};

use crate::stage::{NAMESPACE, SOON, Stage, job};

const ENUM: &str =
    "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/cleanPodPolicy/enum/-";

/// The job of a newer version: its schema has one more value of an enum.
async fn becomes_newer(stage: &Stage) {
    let crds: Api<CustomResourceDefinition> = Api::all(stage.client.clone());
    let parameters = PatchParams::default();
    let value = json!([{"op": "add", "path": ENUM, "value": "Later"}]);
    let patch: Patch<()> = Patch::Json(serde_json::from_value(value).unwrap());
    let name = "trainingjobs.roundhouse.dev";
    crds.patch(name, &parameters, &patch).await.unwrap();
    until("the newer schema is served", SOON, || async {
        Ok(edit(stage, json!({"cleanPodPolicy": "Later"})).await.ok())
    })
    .await
    .unwrap();
}

async fn edit(stage: &Stage, spec: Value) -> kube::Result<Guarded> {
    let jobs: Api<Guarded> = Api::namespaced(stage.client.clone(), NAMESPACE);
    let patch = Patch::Merge(json!({"spec": spec}));
    jobs.patch("digits", &PatchParams::default(), &patch).await
}

/// Waits until the job's status is so, and returns it.
async fn status_is(
    stage: &Stage,
    what: &str,
    is: impl Fn(&TrainingJobStatus) -> bool,
) -> TrainingJobStatus {
    let jobs: Api<Guarded> = Api::namespaced(stage.client.clone(), NAMESPACE);
    until(what, SOON, || async {
        let status = jobs.get("digits").await?.job.status.unwrap_or_default();
        Ok(is(&status).then_some(status))
    })
    .await
    .unwrap()
}

fn is_refused(status: &TrainingJobStatus) -> bool {
    let accepted = status.condition(ConditionType::Accepted);
    accepted.is_some_and(|it| it.status == "False" && it.message.contains("spec.cleanPodPolicy"))
}

/// As many objects within each other as no reader of JSON reads.
fn deep() -> String {
    let levels = 5_000;
    "{\"f:a\":".repeat(levels) + "{}" + &"}".repeat(levels)
}

/// Sends an object. kube cannot read the API server's answer.
async fn send(stage: &Stage, path: &str, object: &Value) {
    let text = object.to_string().replace("\"DEEP\"", &deep());
    let request = Request::post(path).header(CONTENT_TYPE, "application/json");
    let request = request.body(text.into_bytes()).unwrap();
    stage.client.request_text(request).await.unwrap();
}

/// Creates a job with options nested so.
async fn create_nested(stage: &Stage, name: &str) {
    let mut job = job(1);
    job["metadata"]["name"] = json!(name);
    job["spec"]["trainer"]["model"] = json!({"name": "custom"});
    job["spec"]["trainer"]["options"] = json!({"deep": "DEEP"});
    let path = format!("/apis/roundhouse.dev/v1alpha1/namespaces/{NAMESPACE}/trainingjobs");
    send(stage, &path, &job).await;
}

/// Waits until it is refused, in words that say why.
async fn is_refused_with(stage: &Stage, name: &str, words: &str) {
    let jobs: Api<TrainingJob> = Api::namespaced(shallow(stage.client.clone()), NAMESPACE);
    until("it is refused", SOON, || async {
        let status = jobs.get(name).await?.status.unwrap_or_default();
        let accepted = status.condition(ConditionType::Accepted);
        let is_refused = |it: &Condition| it.message.contains(words);
        Ok(accepted.is_some_and(is_refused).then_some(()))
    })
    .await
    .unwrap();
}

async fn nested_is_refused(stage: &Stage, name: &str) {
    is_refused_with(stage, name, "more than 32 levels deep").await;
}

/// Creates a job of 1.2 MiB.
async fn create_large(stage: &Stage, name: &str) {
    let mut job = job(1);
    job["metadata"]["name"] = json!(name);
    let args: Vec<String> = (0..10).map(|_| "x".repeat(125_000)).collect();
    let container = json!({"name": "trainer", "args": args});
    job["spec"]["workers"]["template"] = json!({"spec": {"containers": [container]}});
    stage.create(NAMESPACE, job).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_too_large_is_refused_and_others_train() {
    let stage = Stage::new().await;
    // An operator lists the first one, and is told of the second.
    create_large(&stage, "listed").await;
    let operator = stage.operator(None);
    let words = "the operator manages jobs of at most 256 KiB";
    is_refused_with(&stage, "listed", words).await;
    create_large(&stage, "told").await;
    is_refused_with(&stage, "told", words).await;
    stage.apply("other", 2).await;
    stage.trains("other").await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_nested_deeper_than_readers_read_is_refused_and_others_train() {
    let stage = Stage::new().await;
    // An operator lists the first one, and is told of the second.
    create_nested(&stage, "listed").await;
    let operator = stage.operator(None);
    nested_is_refused(&stage, "listed").await;
    create_nested(&stage, "told").await;
    nested_is_refused(&stage, "told").await;
    stage.apply("other", 2).await;
    stage.trains("other").await;
    operator.stop().await;
}

/// Whether the API server has kept the levels of an object's managed fields.
async fn is_deep(stage: &Stage, path: &str) -> bool {
    let request = Request::get(path).body(Vec::new()).unwrap();
    let text = stage.client.request_text(request).await.unwrap();
    text.contains(&"{\"f:a\":".repeat(200))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_whose_managed_fields_are_nested_deeply_stops_nobody() {
    let stage = Stage::new().await;
    let operator = stage.operator(None);
    let managed = json!([{
        "manager": "a-tenant", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": "DEEP",
    }]);
    let labels = json!({labels::MANAGED_BY: labels::FIELD_MANAGER});
    let metadata = json!({"name": "deep", "labels": labels, "managedFields": managed});
    let container = json!({"name": "a", "image": "a"});
    let pods = format!("/api/v1/namespaces/{NAMESPACE}/pods");
    let pod = json!({"metadata": metadata, "spec": {"containers": [container]}});
    send(&stage, &pods, &pod).await;
    assert!(is_deep(&stage, &format!("{pods}/deep")).await);
    stage.apply("other", 2).await;
    stage.trains("other").await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_which_a_field_cannot_be_read_trains_on_and_can_be_suspended_and_mended() {
    let stage = Stage::new().await;
    let operator = stage.operator(None);
    stage.apply(NAMESPACE, 2).await;
    stage.trains(NAMESPACE).await;
    becomes_newer(&stage).await;
    let status = status_is(&stage, "the field is named", is_refused).await;
    assert!(status.is_true(ConditionType::Running), "{status:#?}");
    let workers = || async {
        let pods = stage.pods(NAMESPACE).list(&ListParams::default()).await?;
        Ok::<_, kube::Error>(pods.items)
    };
    let pods = workers().await.unwrap();
    let mut leaving = pods
        .iter()
        .filter_map(|pod| pod.meta().deletion_timestamp.as_ref());
    assert_eq!((pods.len(), leaving.next()), (2, None));

    edit(&stage, json!({"suspend": true})).await.unwrap();
    let suspended = |status: &TrainingJobStatus| status.is_true(ConditionType::Suspended);
    let status = status_is(&stage, "it is suspended", suspended).await;
    assert!(is_refused(&status), "{status:#?}");
    until("all workers are gone", SOON, || async {
        Ok(workers().await?.is_empty().then_some(()))
    })
    .await
    .unwrap();

    edit(&stage, json!({"suspend": false, "cleanPodPolicy": "All"}))
        .await
        .unwrap();
    stage.trains(NAMESPACE).await;
    operator.stop().await;
}
