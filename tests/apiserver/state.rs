//! The column STATE, whatever other actors do to the conditions.

use http::Request;
use http::header::ACCEPT;
use kube::Resource;
use kube::api::{Patch, PatchParams};
use roundhouse_api::TrainingJob;
use roundhouse_contract::termination::Reason;
use roundhouse_tests::cluster::until;
use serde_json::{Value, json};

use crate::stage::{NAMESPACE, SOON, Stage};

/// The cell that `kubectl get` shows of the job.
async fn column(stage: &Stage, name: &str) -> String {
    let path = TrainingJob::url_path(&(), Some(NAMESPACE));
    let request = Request::get(format!("{path}/digits"))
        .header(ACCEPT, "application/json;as=Table;v=v1;g=meta.k8s.io")
        .body(Vec::new())
        .unwrap();
    let table: Value = stage.client.request(request).await.unwrap();
    let mut columns = table["columnDefinitions"].as_array().unwrap().iter();
    let at = columns.position(|column| column["name"] == name).unwrap();
    let cell = table["rows"][0]["cells"][at].as_str();
    cell.unwrap_or_default().to_owned()
}

/// A job that has ended.
async fn ended(stage: &Stage) -> TrainingJob {
    stage.apply(NAMESPACE, 1).await;
    stage.trains(NAMESPACE).await;
    stage.kubelet(NAMESPACE, Some((0, Reason::Completed))).await;
    stage.reaches(NAMESPACE, "Completed").await
}

#[tokio::test(flavor = "multi_thread")]
async fn another_actor_that_reorders_conditions_does_not_change_the_state() {
    let stage = Stage::new().await;
    let operator = stage.operator(None);
    let status = ended(&stage).await.status.unwrap();
    let message = column(&stage, "Message").await;
    assert_eq!(message, status.front().unwrap().message);
    let mut conditions = status.conditions.clone();
    conditions.reverse();
    let patch = json!({
        "apiVersion": "roundhouse.dev/v1alpha1", "kind": "TrainingJob",
        "status": {"conditions": conditions},
    });
    let other = PatchParams::apply("other").force();
    let (jobs, patch) = (stage.jobs(NAMESPACE), Patch::Apply(&patch));
    let after = jobs.patch_status("digits", &other, &patch).await;
    let after = after.unwrap().status.unwrap().conditions;
    assert_ne!(after[0].type_, status.conditions[0].type_, "{after:?}");
    assert_eq!(column(&stage, "State").await, "Completed");
    assert_eq!(column(&stage, "Message").await, message);
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_that_an_older_operator_wrote_gets_its_state_once() {
    let stage = Stage::new().await;
    let operator = stage.operator(None);
    ended(&stage).await;
    operator.stop().await;
    let older = Patch::Merge(json!({"status": {"state": null}}));
    let (jobs, parameters) = (stage.jobs(NAMESPACE), PatchParams::default());
    let older = jobs.patch_status("digits", &parameters, &older).await;
    let older = older.unwrap();
    assert_eq!(column(&stage, "State").await, "");

    let operator = stage.operator(None);
    let newer = until("the state is told", SOON, || async {
        let job = stage.job(NAMESPACE).await;
        let told = job.status.as_ref().and_then(|it| it.state.as_deref());
        Ok((told == Some("Completed")).then_some(job))
    });
    let newer = newer.await.unwrap();
    let generation = |job: &TrainingJob| job.status.as_ref().and_then(|it| it.observed_generation);
    assert_eq!(generation(&newer), newer.metadata.generation);
    assert_eq!(generation(&newer), generation(&older));
    operator.stop().await;
    let same = stage.job(NAMESPACE).await.metadata.resource_version;
    assert_eq!(same, newer.metadata.resource_version, "once");
}
