//! The same pods without an operator: the time to create them, and the time to write to each once.

use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::stream::iter;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams, PostParams};
use roundhouse_contract::labels;
use serde_json::json;

use crate::cluster::Cluster;
use crate::{load, seen};

/// The measured times of the bare client.
#[derive(Clone, Copy)]
pub(crate) struct Bare {
    /// From the first create until all pods were ready.
    pub(crate) create: Duration,
    /// One write to each pod, with as many bytes as a membership document.
    pub(crate) write: Duration,
}

/// Creates copies of a pod that the operator created, writes to each once, and deletes them.
pub(crate) async fn run(cluster: &Cluster, like: &Pod, num_pods: u32) -> anyhow::Result<Bare> {
    let mut like = like.clone();
    let document = like.annotations_mut().remove(labels::MEMBERSHIP);
    let patch = Patch::Merge(json!({"metadata": {"annotations": {labels::MEMBERSHIP: document}}}));
    let name = |number| format!("bare-{number}");
    let pods = load::pods(cluster);

    let started = Instant::now();
    let created = iter(0..num_pods).map(|number| {
        let (pods, mut pod) = (pods.clone(), like.clone());
        pod.metadata.name = Some(name(number));
        async move {
            pods.create(&PostParams::default(), &pod).await?;
            anyhow::Ok(())
        }
    });
    let ready = seen::all_are(cluster, None, num_pods, seen::is_ready);
    tokio::try_join!(load::all(created), ready)?;
    let create = started.elapsed();

    let started = Instant::now();
    let written = iter(0..num_pods).map(|number| {
        let (pods, patch, name) = (pods.clone(), patch.clone(), name(number));
        async move {
            pods.patch(&name, &PatchParams::default(), &patch).await?;
            anyhow::Ok(())
        }
    });
    load::all(written).await?;
    let write = started.elapsed();
    load::clear(cluster).await?;
    Ok(Bare { create, write })
}
