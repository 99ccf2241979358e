//! The column STATE of `kubectl get`, also when another client changes the conditions.

use http::Request;
use http::header::ACCEPT;
use kube::Resource;
use kube::api::{Patch, PatchParams};
use roundhouse_api::TrainingJob;
use roundhouse_contract::termination::Reason;
use roundhouse_tests::cluster::until;
use serde_json::{Value, json};

use crate::environment::{Environment, NAMESPACE, TIMEOUT};

/// The cell that `kubectl get` shows for the job in a column.
async fn column(env: &Environment, name: &str) -> String {
    let path = TrainingJob::url_path(&(), Some(NAMESPACE));
    let request = Request::get(format!("{path}/digits"))
        .header(ACCEPT, "application/json;as=Table;v=v1;g=meta.k8s.io")
        .body(Vec::new())
        .unwrap();
    let table: Value = env.client.request(request).await.unwrap();
    let mut columns = table["columnDefinitions"].as_array().unwrap().iter();
    let at = columns.position(|column| column["name"] == name).unwrap();
    let cell = table["rows"][0]["cells"][at].as_str();
    cell.unwrap_or_default().to_owned()
}

/// Runs a job to completion.
async fn run_to_completion(env: &Environment) -> TrainingJob {
    env.apply(NAMESPACE, 1).await;
    env.run_until_training(NAMESPACE).await;
    env.run_kubelet(NAMESPACE, Some((0, Reason::Completed)))
        .await;
    env.until_state(NAMESPACE, "Completed").await
}

#[tokio::test(flavor = "multi_thread")]
async fn reordered_conditions_do_not_change_the_state() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    let status = run_to_completion(&env).await.status.unwrap();
    let message = column(&env, "Message").await;
    assert_eq!(message, status.front().unwrap().message);
    let mut conditions = status.conditions.clone();
    conditions.reverse();
    let patch = json!({
        "apiVersion": "roundhouse.dev/v1alpha1", "kind": "TrainingJob",
        "status": {"conditions": conditions},
    });
    let other = PatchParams::apply("other").force();
    let (jobs, patch) = (env.jobs(NAMESPACE), Patch::Apply(&patch));
    let after = jobs.patch_status("digits", &other, &patch).await;
    let after = after.unwrap().status.unwrap().conditions;
    assert_ne!(after[0].type_, status.conditions[0].type_, "{after:?}");
    assert_eq!(column(&env, "State").await, "Completed");
    assert_eq!(column(&env, "Message").await, message);
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn status_without_state_is_completed_once() {
    let env = Environment::new().await;
    let operator = env.operator(None);
    run_to_completion(&env).await;
    operator.stop().await;
    let older = Patch::Merge(json!({"status": {"state": null}}));
    let (jobs, parameters) = (env.jobs(NAMESPACE), PatchParams::default());
    let older = jobs.patch_status("digits", &parameters, &older).await;
    let older = older.unwrap();
    assert_eq!(column(&env, "State").await, "");

    let operator = env.operator(None);
    let newer = until("the state is written", TIMEOUT, || async {
        let job = env.job(NAMESPACE).await;
        let state = job.status.as_ref().and_then(|it| it.state.as_deref());
        Ok((state == Some("Completed")).then_some(job))
    });
    let newer = newer.await.unwrap();
    let generation = |job: &TrainingJob| job.status.as_ref().and_then(|it| it.observed_generation);
    assert_eq!(generation(&newer), newer.metadata.generation);
    assert_eq!(generation(&newer), generation(&older));
    operator.stop().await;
    let same = env.job(NAMESPACE).await.metadata.resource_version;
    assert_eq!(same, newer.metadata.resource_version, "written once");
}
