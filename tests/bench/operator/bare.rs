//! The same pods without an operator: what creating them takes, and what telling each something takes.

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

/// What it took.
#[derive(Clone, Copy)]
pub(crate) struct Bare {
    /// Until all pods were ready.
    pub(crate) create: Duration,
    /// One write to each of them, of as many bytes as its place in a generation.
    pub(crate) tell: Duration,
}

/// Creates pods like one that an operator has made, writes to each once, and deletes them.
pub(crate) async fn run(cluster: &Cluster, like: &Pod, num_pods: u32) -> anyhow::Result<Bare> {
    let mut like = like.clone();
    let document = like.annotations_mut().remove(labels::MEMBERSHIP);
    let tell = Patch::Merge(json!({"metadata": {"annotations": {labels::MEMBERSHIP: document}}}));
    let name = |number| format!("bare-{number}");
    let pods = load::pods(cluster);

    let begun = Instant::now();
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
    let create = begun.elapsed();

    let begun = Instant::now();
    let told = iter(0..num_pods).map(|number| {
        let (pods, tell, name) = (pods.clone(), tell.clone(), name(number));
        async move {
            pods.patch(&name, &PatchParams::default(), &tell).await?;
            anyhow::Ok(())
        }
    });
    load::all(told).await?;
    let tell = begun.elapsed();
    load::clear(cluster).await?;
    Ok(Bare { create, tell })
}
