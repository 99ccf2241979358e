//! Jobs, and the same pods without an operator.

use std::time::{Duration, Instant};

use anyhow::ensure;
use futures::StreamExt;
use futures::stream::iter;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use roundhouse_api::{ConditionType, TrainingJob};
use roundhouse_contract::{Membership, labels};
use roundhouse_tests::cluster::until;
use serde_json::{Value, json};

use crate::cluster::{Cluster, NAMESPACE};
use crate::run::Shape;

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
    all(created).await?;
    for number in 0..shape.jobs {
        trains(cluster, &format!("{name}-{number}"), 1).await?;
    }
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
pub(crate) async fn trains(cluster: &Cluster, job: &str, generation: u64) -> anyhow::Result<()> {
    let jobs = jobs(cluster);
    until("the job trains", DEADLINE, || async {
        let status = jobs.get(job).await?.status.unwrap_or_default();
        let formed = status.membership.as_ref().map(|it| it.generation);
        let is_so = formed == Some(generation) && status.is_true(ConditionType::Running);
        Ok(is_so.then_some(()))
    })
    .await?;
    // The status says so first, and then it is told to the workers.
    let selector = ListParams::default().labels(&format!("{}={job}", labels::JOB_NAME));
    until("all are told", DEADLINE, || async {
        let workers = pods(cluster).list(&selector).await?;
        let mut told = workers.iter().map(|pod| {
            let document = pod.annotations().get(labels::MEMBERSHIP)?;
            Membership::parse(document).ok().flatten()
        });
        Ok(told
            .all(|it| it.is_some_and(|it| it.generation == generation))
            .then_some(()))
    })
    .await
}

/// Creates pods like one that an operator has made, and returns when all are ready.
pub(crate) async fn bare(cluster: &Cluster, like: &Pod, num_pods: u32) -> anyhow::Result<Duration> {
    let begun = Instant::now();
    let pods = pods(cluster);
    let created = iter(0..num_pods).map(|number| {
        let (pods, mut pod) = (pods.clone(), like.clone());
        pod.metadata.name = Some(format!("bare-{number}"));
        async move {
            pods.create(&PostParams::default(), &pod).await?;
            anyhow::Ok(())
        }
    });
    all(created).await?;
    until("all are ready", DEADLINE, || async {
        let listed = pods.list(&ListParams::default()).await?;
        let num_ready = listed.iter().filter(|pod| is_ready(pod)).count();
        Ok((num_ready >= num_pods as usize).then_some(()))
    })
    .await?;
    let took = begun.elapsed();
    clear(cluster).await?;
    Ok(took)
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

pub(crate) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|it| it.type_ == "Ready" && it.status == "True")
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
