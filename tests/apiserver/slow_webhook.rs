//! An admission webhook for changes that answers nothing, and that the API server passes over after its timeout.

use std::net::TcpListener;
use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::events::v1::Event;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, PostParams};
use roundhouse_api::ConditionType;
use roundhouse_contract::labels;
use roundhouse_tests::cluster::until;
use serde_json::{Value, json};

use crate::events::told;
use crate::stage::{NAMESPACE, SOON, Stage};

const NAME: &str = "silent";
/// What an event takes to be stored: less than the operator waits for a call.
const EVENT_SECONDS: u32 = 3;

/// Goes when the value does, so that the API server closes what it has opened.
struct Webhook {
    _listener: TcpListener,
}

impl Webhook {
    /// For changes and deletions of these resources: the API server waits so long for each.
    async fn new(stage: &Stage, seconds: u32, resources: &[(&str, &str)]) -> Self {
        Self::of(stage, seconds, &["UPDATE", "DELETE"], resources).await
    }

    async fn of(
        stage: &Stage,
        seconds: u32,
        operations: &[&str],
        resources: &[(&str, &str)],
    ) -> Self {
        // Connections are taken by the kernel; nobody reads what they say.
        let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = silent.local_addr().unwrap().port();
        let rules = resources.iter().map(|(group, resource)| {
            json!({"apiGroups": [group], "apiVersions": ["*"], "operations": operations, "resources": [resource]})
        });
        let webhook = json!({
            "metadata": {"name": NAME},
            "webhooks": [{
                "name": "silent.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "failurePolicy": "Ignore", "timeoutSeconds": seconds,
                "clientConfig": {"url": format!("https://127.0.0.1:{port}/")},
                "rules": rules.collect::<Vec<Value>>(),
            }],
        });
        let webhook = serde_json::from_value(webhook).unwrap();
        let parameters = PostParams::default();
        let made = webhooks(stage).create(&parameters, &webhook).await;
        made.unwrap();
        Self { _listener: silent }
    }

    async fn remove(self, stage: &Stage) {
        let parameters = DeleteParams::default();
        let removed = webhooks(stage).delete(NAME, &parameters).await;
        removed.unwrap();
    }
}

fn webhooks(stage: &Stage) -> Api<ValidatingWebhookConfiguration> {
    Api::all(stage.client.clone())
}

/// Waits until all workers have been told their places.
async fn are_told(stage: &Stage, within: Duration) {
    until("all are told their places", within, || async {
        stage.kubelet(NAMESPACE, None).await;
        let pods = stage.all_pods(NAMESPACE).await;
        let is_told = |pod: &k8s_openapi::api::core::v1::Pod| {
            pod.annotations().contains_key(labels::MEMBERSHIP)
        };
        Ok((!pods.is_empty() && pods.iter().all(is_told)).then_some(()))
    })
    .await
    .unwrap();
}

/// Waits until nobody stays. Pods that the scheduler has not placed are then for the pod garbage collector, which does not run here.
async fn are_gone(stage: &Stage, within: Duration) {
    until("all workers are gone", within, || async {
        let pods = stage.all_pods(NAMESPACE).await;
        let mut leave = pods
            .iter()
            .map(|pod| pod.metadata.deletion_timestamp.is_some());
        Ok(leave.all(|it| it).then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_webhook_for_changes_of_pods_delays_a_generation_and_is_told() {
    let stage = Stage::new().await;
    // Longer than a call waits the first time.
    let webhook = Webhook::new(&stage, 7, &[("", "pods")]).await;
    let operator = stage.operator(None);
    stage.apply(NAMESPACE, 2).await;
    let words = "IssueMembership takes longer than 5 s; an admission webhook may be slow";
    until("it is told", SOON, || async {
        stage.kubelet(NAMESPACE, None).await;
        let status = stage.job(NAMESPACE).await.status.unwrap_or_default();
        let running = status.condition(ConditionType::Running);
        Ok(running.filter(|it| it.message.contains(words)).map(drop))
    })
    .await
    .unwrap();
    are_told(&stage, SOON).await;

    // The same for deletions.
    stage.edit(&json!({"suspend": true})).await.unwrap();
    are_gone(&stage, SOON).await;
    webhook.remove(&stage).await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_workers_behind_a_slow_webhook_are_told_and_deleted_together() {
    const SECONDS: u32 = 3;
    const WORKERS: u32 = 24;
    // One after the other they would take one and a half times as long.
    let together = Duration::from_secs((SECONDS * WORKERS * 2 / 3).into());
    let stage = Stage::new().await;
    let webhook = Webhook::new(&stage, SECONDS, &[("", "pods")]).await;
    let operator = stage.operator(None);
    stage.apply(NAMESPACE, WORKERS).await;
    until("all are made", SOON, || async {
        let made = stage.all_pods(NAMESPACE).await.len();
        Ok((made == WORKERS as usize).then_some(()))
    })
    .await
    .unwrap();
    are_told(&stage, together).await;
    let acted = |action: &str| {
        operator.metric(&format!(
            "roundhouse_operator_actions_total{{action=\"{action}\"}}"
        ))
    };
    assert_eq!(acted("IssueMembership"), Some(WORKERS.into()));

    stage.edit(&json!({"suspend": true})).await.unwrap();
    // The status does not wait until all are deleted.
    stage.reaches(NAMESPACE, "Suspended").await;
    are_gone(&stage, together).await;
    webhook.remove(&stage).await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_status_takes_long_to_be_stored_trains_all_the_same() {
    let stage = Stage::new().await;
    let resources = [("roundhouse.dev", "trainingjobs/status")];
    let webhook = Webhook::new(&stage, 6, &resources).await;
    let operator = stage.operator(None);
    stage.apply(NAMESPACE, 1).await;
    stage.trains(NAMESPACE).await;
    webhook.remove(&stage).await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_that_take_long_to_be_stored_hold_up_no_step_and_are_told_in_their_order() {
    let stage = Stage::new().await;
    let resources = [("events.k8s.io", "events")];
    let webhook = Webhook::of(&stage, EVENT_SECONDS, &["CREATE"], &resources).await;
    let operator = stage.operator(None);
    stage.apply(NAMESPACE, 1).await;
    stage.trains(NAMESPACE).await;
    let reasons = until("the last event is told", SOON, || async {
        let mut all = told(&stage).await;
        // In the order in which they were stored.
        let version = |event: &Event| event.resource_version().unwrap().parse::<u64>().unwrap();
        all.sort_by_key(version);
        let reasons = all.into_iter().filter_map(|event| event.reason);
        let reasons: Vec<String> = reasons.collect();
        let is_last = reasons.iter().any(|reason| reason == "GenerationIssued");
        Ok(is_last.then_some(reasons))
    })
    .await
    .unwrap();
    assert_eq!(reasons, ["Accepted", "GenerationIssued"]);
    let lost = operator.metric("roundhouse_operator_events_dropped_total");
    assert_eq!(lost, Some(0.0));
    let reconciled = operator.total_seconds("roundhouse_operator_reconcile_seconds");
    assert!(reconciled < f64::from(EVENT_SECONDS), "{reconciled} s");
    webhook.remove(&stage).await;
    operator.stop().await;
}
