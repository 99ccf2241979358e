//! A watch that delivers nothing while its connection stays open.

use std::time::Duration;

use kube::api::{ListParams, Patch, PatchParams};
use roundhouse_operator::watch::client::WatchTimeouts;
use roundhouse_tests::cluster::until;
use serde_json::json;

use crate::environment::{Environment, NAMESPACE, Network, TIMEOUT};

/// One thirtieth of the default times.
const SHORT: WatchTimeouts = WatchTimeouts {
    answer: Duration::from_secs(1),
    pause: Duration::from_secs(2),
    watch: 2,
    stale: Duration::from_secs(3),
};
const AGE: &str = "roundhouse_operator_watch_age_seconds{kind=\"pods\"}";
const STALE: &str = "roundhouse_operator_reconciles_total{result=\"Stale\"}";

#[tokio::test(flavor = "multi_thread")]
async fn stale_pod_cache_deletes_nothing() {
    let env = Environment::new().await;
    let operator = env.operator_behind_network(Network::default(), SHORT);
    env.apply(NAMESPACE, 2).await;
    env.run_until_training(NAMESPACE).await;

    operator.network.silence_pod_watch(true);
    let change = Patch::Merge(json!({"metadata": {"annotations": {"a": "b"}}}));
    let pods = env.pods(NAMESPACE);
    pods.patch("digits-worker-0-0", &PatchParams::default(), &change)
        .await
        .unwrap();
    until("the cache is stale", TIMEOUT, || async {
        Ok(operator.metric(AGE).filter(|age| *age > 3.0))
    })
    .await
    .unwrap();
    let suspend = Patch::Merge(json!({"spec": {"suspend": true}}));
    let jobs = env.jobs(NAMESPACE);
    jobs.patch("digits", &PatchParams::default(), &suspend)
        .await
        .unwrap();
    until("the operator notices", TIMEOUT, || async {
        Ok(operator.metric(STALE).filter(|times| *times >= 2.0))
    })
    .await
    .unwrap();
    let all = pods.list(&ListParams::default()).await.unwrap();
    let left = all
        .iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none());
    assert_eq!(left.count(), 2);

    operator.network.silence_pod_watch(false);
    until("the workers are gone", TIMEOUT, || async {
        let all = pods.list(&ListParams::default()).await?;
        Ok(all.items.is_empty().then_some(()))
    })
    .await
    .unwrap();
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_not_reconciled_before_caches_are_filled() {
    let env = Environment::new().await;
    env.apply(NAMESPACE, 1).await;
    let network = Network::default();
    network.silence_pod_watch(true);
    let operator = env.operator_behind_network(network, SHORT);
    until("the operator watches the jobs", TIMEOUT, || async {
        let watches = "roundhouse_operator_api_calls_total{code=\"200\",resource=\"trainingjobs\",verb=\"watch\"}";
        Ok(operator.metric(watches).filter(|times| *times >= 1.0))
    })
    .await
    .unwrap();
    until("time has passed", TIMEOUT, || async {
        Ok(operator.metric(AGE).filter(|age| *age > 3.0))
    })
    .await
    .unwrap();
    let reconciles = operator.metric("roundhouse_operator_queue_wait_seconds_count");
    assert_eq!(reconciles, Some(0.0));
    operator.network.silence_pod_watch(false);
    env.until_state(NAMESPACE, "WaitingForWorkers").await;
    operator.stop().await;
}
