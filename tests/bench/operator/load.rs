//! Jobs, and calls of many.

use std::time::{Duration, Instant};

use anyhow::ensure;
use futures::StreamExt;
use futures::stream::iter;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use roundhouse_api::TrainingJob;
use roundhouse_contract::labels;
use roundhouse_tests::cluster::until;
use serde_json::{Value, json};

use crate::cluster::{Cluster, NAMESPACE};
use crate::run::Shape;
use crate::seen;

/// Calls of a client at the same time, as many as the operator makes.
const AT_ONCE: usize = 16;
pub(crate) const DEADLINE: Duration = Duration::from_mins(15);
/// Until what follows a change is over, and then for how long nothing happens.
pub(crate) const REST: Duration = Duration::from_secs(15);

pub(crate) fn pods(cluster: &Cluster) -> Api<Pod> {
    Api::namespaced(cluster.client.clone(), NAMESPACE)
}

pub(crate) fn jobs(cluster: &Cluster) -> Api<TrainingJob> {
    Api::namespaced(cluster.client.clone(), NAMESPACE)
}

/// Applies all jobs, `NAME-0` and so on; returns when each of their pods has its place in generation 1.
pub(crate) async fn apply(cluster: &Cluster, name: &str, shape: Shape) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    let jobs = jobs(cluster);
    let created = iter(0..shape.jobs).map(|number| {
        let jobs = jobs.clone();
        let job = job(&format!("{name}-{number}"), shape.workers);
        async move {
            let job = serde_json::from_value(job)?;
            jobs.create(&PostParams::default(), &job).await?;
            anyhow::Ok(())
        }
    });
    let is_told = |pod: &Pod| seen::is_told(pod, 1);
    let told = seen::all_are(cluster, None, shape.pods(), is_told);
    tokio::try_join!(all(created), told)?;
    Ok(begun.elapsed())
}

pub(crate) fn job(name: &str, workers: u32) -> Value {
    json!({
        "apiVersion": "roundhouse.dev/v1alpha1", "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {
            "workers": {"replicas": workers},
            "trainer": {
                "model": {"name": "mlp"}, "data": {"format": "idx"},
                "globalBatchSize": 10_000, "epochs": 1,
            },
        },
    })
}

/// Waits until all workers of a job have been told a generation.
pub(crate) async fn trains(
    cluster: &Cluster,
    job: &str,
    workers: u32,
    generation: u64,
) -> anyhow::Result<()> {
    let of_job = of_job(job);
    let is_told = |pod: &Pod| seen::is_told(pod, generation);
    seen::all_are(cluster, Some(&of_job), workers, is_told).await?;
    Ok(())
}

pub(crate) fn of_job(job: &str) -> String {
    format!("{}={job}", labels::JOB_NAME)
}

/// Deletes a pod, as a node does that is lost: at once.
pub(crate) async fn lose(cluster: &Cluster, pod: &str) -> anyhow::Result<()> {
    let at_once = DeleteParams::default().grace_period(0);
    pods(cluster).delete(pod, &at_once).await?;
    Ok(())
}

/// Deletes all pods.
pub(crate) async fn clear(cluster: &Cluster) -> anyhow::Result<()> {
    let pods = pods(cluster);
    let at_once = DeleteParams::default().grace_period(0);
    pods.delete_collection(&at_once, &ListParams::default())
        .await?;
    until("all pods are gone", DEADLINE, || async {
        let left = pods.list(&ListParams::default().limit(1)).await?;
        Ok(left.items.is_empty().then_some(()))
    })
    .await
}

pub(crate) async fn all(
    calls: impl futures::Stream<Item = impl Future<Output = anyhow::Result<()>>>,
) -> anyhow::Result<()> {
    let mut done = std::pin::pin!(calls.buffer_unordered(AT_ONCE));
    while let Some(result) = done.next().await {
        ensure!(result.is_ok(), "{result:?}");
    }
    Ok(())
}
