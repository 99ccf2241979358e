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

use crate::environment::{Environment, NAMESPACE, TIMEOUT};
use crate::events::published;

const NAME: &str = "silent";
/// What an event takes to be stored: less than the operator waits for a call.
const EVENT_SECONDS: u32 = 3;

/// Goes when the value does, so that the API server closes what it has opened.
struct Webhook {
    _listener: TcpListener,
}

impl Webhook {
    /// For changes and deletions of these resources: the API server waits so long for each.
    async fn new(env: &Environment, seconds: u32, resources: &[(&str, &str)]) -> Self {
        Self::of(env, seconds, &["UPDATE", "DELETE"], resources).await
    }

    async fn of(
        env: &Environment,
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
        let made = webhooks(env).create(&parameters, &webhook).await;
        made.unwrap();
        Self { _listener: silent }
    }

    async fn remove(self, env: &Environment) {
        let parameters = DeleteParams::default();
        let removed = webhooks(env).delete(NAME, &parameters).await;
        removed.unwrap();
    }
}

fn webhooks(env: &Environment) -> Api<ValidatingWebhookConfiguration> {
    Api::all(env.client.clone())
}

/// Waits until all workers have been told their places.
async fn are_told(env: &Environment, within: Duration) {
    until("all are told their places", within, || async {
        env.run_kubelet(NAMESPACE, None).await;
        let pods = env.all_pods(NAMESPACE).await;
        let is_told = |pod: &k8s_openapi::api::core::v1::Pod| {
            pod.annotations().contains_key(labels::MEMBERSHIP)
        };
        Ok((!pods.is_empty() && pods.iter().all(is_told)).then_some(()))
    })
    .await
    .unwrap();
}

/// Waits until nobody stays. Pods that the scheduler has not placed are then for the pod garbage collector, which does not run here.
async fn are_gone(env: &Environment, within: Duration) {
    until("all workers are gone", within, || async {
        let pods = env.all_pods(NAMESPACE).await;
        let mut leave = pods
            .iter()
            .map(|pod| pod.metadata.deletion_timestamp.is_some());
        Ok(leave.all(|it| it).then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_pod_webhook_only_delays_and_is_reported() {
    let env = Environment::new().await;
    // Longer than a call waits the first time.
    let webhook = Webhook::new(&env, 7, &[("", "pods")]).await;
    let operator = env.operator(None);
    env.apply(NAMESPACE, 2).await;
    let words = "IssueMembership takes longer than 5 s; an admission webhook may be slow";
    until("it is told", TIMEOUT, || async {
        env.run_kubelet(NAMESPACE, None).await;
        let status = env.job(NAMESPACE).await.status.unwrap_or_default();
        let running = status.condition(ConditionType::Running);
        Ok(running.filter(|it| it.message.contains(words)).map(drop))
    })
    .await
    .unwrap();
    are_told(&env, TIMEOUT).await;

    // The same for deletions.
    env.edit(&json!({"suspend": true})).await.unwrap();
    are_gone(&env, TIMEOUT).await;
    webhook.remove(&env).await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_pod_webhook_does_not_serialize_writes() {
    const SECONDS: u32 = 3;
    const WORKERS: u32 = 24;
    // One after the other they would take one and a half times as long.
    let together = Duration::from_secs((SECONDS * WORKERS * 2 / 3).into());
    let env = Environment::new().await;
    let webhook = Webhook::new(&env, SECONDS, &[("", "pods")]).await;
    let operator = env.operator(None);
    env.apply(NAMESPACE, WORKERS).await;
    until("all are made", TIMEOUT, || async {
        let made = env.all_pods(NAMESPACE).await.len();
        Ok((made == WORKERS as usize).then_some(()))
    })
    .await
    .unwrap();
    are_told(&env, together).await;
    let acted = |action: &str| {
        operator.metric(&format!(
            "roundhouse_operator_actions_total{{action=\"{action}\"}}"
        ))
    };
    assert_eq!(acted("IssueMembership"), Some(WORKERS.into()));

    env.edit(&json!({"suspend": true})).await.unwrap();
    // The status does not wait until all are deleted.
    env.until_state(NAMESPACE, "Suspended").await;
    are_gone(&env, together).await;
    webhook.remove(&env).await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_status_webhook_does_not_stop_training() {
    let env = Environment::new().await;
    let resources = [("roundhouse.dev", "trainingjobs/status")];
    let webhook = Webhook::new(&env, 6, &resources).await;
    let operator = env.operator(None);
    env.apply(NAMESPACE, 1).await;
    env.run_until_training(NAMESPACE).await;
    webhook.remove(&env).await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_events_stay_in_order_and_delay_no_step() {
    let env = Environment::new().await;
    let resources = [("events.k8s.io", "events")];
    let webhook = Webhook::of(&env, EVENT_SECONDS, &["CREATE"], &resources).await;
    let operator = env.operator(None);
    env.apply(NAMESPACE, 1).await;
    env.run_until_training(NAMESPACE).await;
    let reasons = until("the last event is told", TIMEOUT, || async {
        let mut all = published(&env).await;
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
    webhook.remove(&env).await;
    operator.stop().await;
}
