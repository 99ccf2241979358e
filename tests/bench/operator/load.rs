//! Creates jobs with many requests at the same time, and deletes their pods.

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

/// The number of concurrent requests of the client, which is that of the operator.
const MAX_CONCURRENT: usize = 16;
pub(crate) const DEADLINE: Duration = Duration::from_mins(15);
/// The wait until the reactions to a change are over, and the time of a measurement at rest.
pub(crate) const REST: Duration = Duration::from_secs(15);

pub(crate) fn pods(cluster: &Cluster) -> Api<Pod> {
    Api::namespaced(cluster.client.clone(), NAMESPACE)
}

pub(crate) fn jobs(cluster: &Cluster) -> Api<TrainingJob> {
    Api::namespaced(cluster.client.clone(), NAMESPACE)
}

/// Applies all jobs, named `NAME-0` and so on. Returns the time until all their pods have the
/// membership of generation 1.
pub(crate) async fn apply(cluster: &Cluster, name: &str, shape: Shape) -> anyhow::Result<Duration> {
    let started = Instant::now();
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
    let is_member = |pod: &Pod| seen::is_member(pod, 1);
    let members = seen::all_are(cluster, None, shape.pods(), is_member);
    tokio::try_join!(all(created), members)?;
    Ok(started.elapsed())
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

/// Waits until all workers of a job have the membership of a generation.
pub(crate) async fn trains(
    cluster: &Cluster,
    job: &str,
    workers: u32,
    generation: u64,
) -> anyhow::Result<()> {
    let of_job = of_job(job);
    let is_member = |pod: &Pod| seen::is_member(pod, generation);
    seen::all_are(cluster, Some(&of_job), workers, is_member).await?;
    Ok(())
}

pub(crate) fn of_job(job: &str) -> String {
    format!("{}={job}", labels::JOB_NAME)
}

/// Deletes a pod without a grace period, as if its node was lost.
pub(crate) async fn lose(cluster: &Cluster, pod: &str) -> anyhow::Result<()> {
    let at_once = DeleteParams::default().grace_period(0);
    pods(cluster).delete(pod, &at_once).await?;
    Ok(())
}

/// Deletes all pods, and waits until they are gone.
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
    let mut done = std::pin::pin!(calls.buffer_unordered(MAX_CONCURRENT));
    while let Some(result) = done.next().await {
        ensure!(result.is_ok(), "{result:?}");
    }
    Ok(())
}
