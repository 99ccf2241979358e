//! A watch that says nothing, on a connection that nobody closes.

use std::time::Duration;

use kube::api::{ListParams, Patch, PatchParams};
use roundhouse_operator::watch::client::WatchTimeouts;
use roundhouse_tests::cluster::until;
use serde_json::json;

use crate::network::Network;
use crate::stage::{NAMESPACE, SOON, Stage};

/// As by default, in a thirtieth of the time.
const IMPATIENT: WatchTimeouts = WatchTimeouts {
    answer: Duration::from_secs(1),
    pause: Duration::from_secs(2),
    watch: 2,
    stale: Duration::from_secs(3),
};
const AGE: &str = "roundhouse_operator_watch_age_seconds{kind=\"pods\"}";
const STALE: &str = "roundhouse_operator_reconciles_total{result=\"Stale\"}";

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_deleted_from_an_old_view_of_the_pods() {
    let stage = Stage::new().await;
    let operator = stage.operator_behind(Network::default(), IMPATIENT);
    stage.apply(NAMESPACE, 2).await;
    stage.trains(NAMESPACE).await;

    operator.network.swallow_pods(true);
    let unheard = Patch::Merge(json!({"metadata": {"annotations": {"unheard": "of"}}}));
    let pods = stage.pods(NAMESPACE);
    pods.patch("digits-worker-0-0", &PatchParams::default(), &unheard)
        .await
        .unwrap();
    until("its view is old", SOON, || async {
        Ok(operator.metric(AGE).filter(|age| *age > 3.0))
    })
    .await
    .unwrap();
    let suspend = Patch::Merge(json!({"spec": {"suspend": true}}));
    let jobs = stage.jobs(NAMESPACE);
    jobs.patch("digits", &PatchParams::default(), &suspend)
        .await
        .unwrap();
    until("it notices", SOON, || async {
        Ok(operator.metric(STALE).filter(|times| *times >= 2.0))
    })
    .await
    .unwrap();
    let all = pods.list(&ListParams::default()).await.unwrap();
    let left = all
        .iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none());
    assert_eq!(left.count(), 2);

    operator.network.swallow_pods(false);
    until("the workers are gone", SOON, || async {
        let all = pods.list(&ListParams::default()).await?;
        Ok(all.items.is_empty().then_some(()))
    })
    .await
    .unwrap();
    operator.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_wait_for_filled_caches_and_are_not_looked_at_before() {
    let stage = Stage::new().await;
    stage.apply(NAMESPACE, 1).await;
    let network = Network::default();
    network.swallow_pods(true);
    let operator = stage.operator_behind(network, IMPATIENT);
    until("the job is known", SOON, || async {
        let watches = "roundhouse_operator_api_calls_total{code=\"200\",resource=\"trainingjobs\",verb=\"watch\"}";
        Ok(operator.metric(watches).filter(|times| *times >= 1.0))
    })
    .await
    .unwrap();
    until("time has passed", SOON, || async {
        Ok(operator.metric(AGE).filter(|age| *age > 3.0))
    })
    .await
    .unwrap();
    let looks = operator.metric("roundhouse_operator_queue_wait_seconds_count");
    assert_eq!(looks, Some(0.0));
    operator.network.swallow_pods(false);
    stage.reaches(NAMESPACE, "WaitingForWorkers").await;
    operator.stop().await;
}
