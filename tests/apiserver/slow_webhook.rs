//! An admission webhook that never responds. After its timeout the API server continues without it.

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
/// How long it takes to store an event: less than the operator's timeout for a request.
const EVENT_SECONDS: u32 = 3;

/// A webhook and the socket on which it accepts connections.
struct Webhook {
    /// Closed on drop, which also closes the connections of the API server.
    _listener: TcpListener,
}

impl Webhook {
    /// A webhook for updates and deletions of these resources, with this timeout.
    async fn new(env: &Environment, seconds: u32, resources: &[(&str, &str)]) -> Self {
        Self::of(env, seconds, &["UPDATE", "DELETE"], resources).await
    }

    async fn of(
        env: &Environment,
        seconds: u32,
        operations: &[&str],
        resources: &[(&str, &str)],
    ) -> Self {
        // The kernel accepts connections, and the test never reads from them.
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
        let created = webhooks(env).create(&parameters, &webhook).await;
        created.unwrap();
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

/// Waits until all workers have a membership.
async fn until_memberships(env: &Environment, within: Duration) {
    until("all workers have a membership", within, || async {
        env.run_kubelet(NAMESPACE, None).await;
        let pods = env.all_pods(NAMESPACE).await;
        let has_membership = |pod: &k8s_openapi::api::core::v1::Pod| {
            pod.annotations().contains_key(labels::MEMBERSHIP)
        };
        Ok((!pods.is_empty() && pods.iter().all(has_membership)).then_some(()))
    })
    .await
    .unwrap();
}

/// Waits until all pods are terminating. The pod garbage collector, which would remove unscheduled
/// pods, does not run here.
async fn until_terminating(env: &Environment, within: Duration) {
    until("all workers are terminating", within, || async {
        let pods = env.all_pods(NAMESPACE).await;
        let mut terminates = pods
            .iter()
            .map(|pod| pod.metadata.deletion_timestamp.is_some());
        Ok(terminates.all(|it| it).then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_pod_webhook_only_delays_and_is_reported() {
    let env = Environment::new().await;
    // Longer than the first timeout of a request.
    let webhook = Webhook::new(&env, 7, &[("", "pods")]).await;
    let operator = env.operator(None);
    env.apply(NAMESPACE, 2).await;
    let expected = "IssueMembership takes longer than 5 s; an admission webhook may be slow";
    until("the delay is reported", TIMEOUT, || async {
        env.run_kubelet(NAMESPACE, None).await;
        let status = env.job(NAMESPACE).await.status.unwrap_or_default();
        let running = status.condition(ConditionType::Running);
        Ok(running.filter(|it| it.message.contains(expected)).map(drop))
    })
    .await
    .unwrap();
    until_memberships(&env, TIMEOUT).await;

    // The webhook delays deletions, too.
    env.edit(&json!({"suspend": true})).await.unwrap();
    until_terminating(&env, TIMEOUT).await;
    webhook.remove(&env).await;
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_pod_webhook_does_not_serialize_writes() {
    const SECONDS: u32 = 3;
    const WORKERS: u32 = 24;
    // Sequential writes would take one and a half times as long.
    let together = Duration::from_secs((SECONDS * WORKERS * 2 / 3).into());
    let env = Environment::new().await;
    let webhook = Webhook::new(&env, SECONDS, &[("", "pods")]).await;
    let operator = env.operator(None);
    env.apply(NAMESPACE, WORKERS).await;
    until("all pods exist", TIMEOUT, || async {
        let num_pods = env.all_pods(NAMESPACE).await.len();
        Ok((num_pods == WORKERS as usize).then_some(()))
    })
    .await
    .unwrap();
    until_memberships(&env, together).await;
    let acted = |action: &str| {
        operator.metric(&format!(
            "roundhouse_operator_actions_total{{action=\"{action}\"}}"
        ))
    };
    assert_eq!(acted("IssueMembership"), Some(WORKERS.into()));

    env.edit(&json!({"suspend": true})).await.unwrap();
    // The operator writes the status before it has deleted all pods.
    env.until_state(NAMESPACE, "Suspended").await;
    until_terminating(&env, together).await;
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
    let reasons = until("the last event is published", TIMEOUT, || async {
        let mut all = published(&env).await;
        // The order in which the API server has stored them.
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
