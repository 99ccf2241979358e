//! The same jobs as other projects make them: `JobSet`, and Kubeflow Trainer, which makes `JobSets`. Both make Jobs, whose pods
//! the job controller of Kubernetes makes.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::Context;
use futures::StreamExt as _;
use futures::stream::iter;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DynamicObject, GroupVersionKind, PostParams};
use kube::core::discovery::ApiResource;
use roundhouse_tests::peers::{JOBSET, TRAINER};
use serde_json::{Value, json};

use crate::cluster::{Cluster, NAMESPACE};
use crate::load::{self, REST};
use crate::process::{cpu_time, peak_memory};
use crate::run::{Shape, writes};
use crate::seen;

/// Who makes the pods.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Who {
    JobSet,
    Trainer,
}

/// What was measured.
pub(crate) struct Figures {
    pub(crate) who: &'static str,
    pub(crate) shape: Shape,
    pub(crate) apply: Duration,
    pub(crate) writes_per_job: f64,
    pub(crate) lost: Duration,
    pub(crate) started_anew: usize,
    pub(crate) memory: f64,
    pub(crate) cpu: f64,
}

pub(crate) async fn run(who: Who, shape: Shape) -> anyhow::Result<Figures> {
    let cluster = Cluster::start(shape.pods() + 1).await?;
    let client = cluster.client.clone();
    // Faster than its default of 20 calls a second.
    let kubeconfig = format!("--kubeconfig={}", cluster.kubeconfig.display());
    let arguments = [
        &kubeconfig,
        "--controllers=job-controller",
        "--leader-elect=false",
        "--secure-port=0",
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
    ];
    cluster.server.run("kube-controller-manager", &arguments)?;
    let mut processes = vec![JOBSET.install(&cluster.server, &client).await?];
    if who == Who::Trainer {
        processes.push(TRAINER.install(&cluster.server, &client).await?);
        create(&cluster, runtime()).await?;
    }
    let before = writes(&cluster)?;
    let begun = Instant::now();
    let created = iter(0..shape.jobs).map(|number| {
        let name = format!("job-{number}");
        let job = match who {
            Who::JobSet => jobset(&name, shape.workers),
            Who::Trainer => train_job(&name, shape.workers),
        };
        create(&cluster, job)
    });
    let gone = BTreeSet::new();
    let ready = all_ready(&cluster, None, shape.pods(), &gone);
    tokio::try_join!(load::all(created), ready)?;
    let apply = begun.elapsed();
    tokio::time::sleep(REST).await;
    let made = writes(&cluster)? - before;
    let cpu = sum(&processes, cpu_time)?;
    let (lost, started_anew) = lose_one(&cluster, shape.workers).await?;
    Ok(Figures {
        who: match who {
            Who::JobSet => "JobSet",
            Who::Trainer => "Kubeflow Trainer",
        },
        shape,
        apply,
        writes_per_job: made as f64 / f64::from(shape.jobs),
        lost,
        started_anew,
        memory: sum(&processes, peak_memory)?,
        cpu,
    })
}

fn sum(processes: &[u32], of: fn(u32) -> anyhow::Result<f64>) -> anyhow::Result<f64> {
    processes.iter().map(|process| of(*process)).sum()
}

/// Deletes a pod of the first job; returns when all are ready again, and how many pods are not those that there were.
async fn lose_one(cluster: &Cluster, workers: u32) -> anyhow::Result<(Duration, usize)> {
    let of_job = "jobset.sigs.k8s.io/jobset-name=job-0";
    let were = all_ready(cluster, Some(of_job), workers, &BTreeSet::new()).await?;
    let victim = were.last().context("no pod")?;
    let begun = Instant::now();
    load::lose(cluster, &victim.name_any()).await?;
    let gone = BTreeSet::from([victim.uid().unwrap_or_default()]);
    let are = all_ready(cluster, Some(of_job), workers, &gone).await?;
    Ok((begun.elapsed(), started_anew(&were, &are)))
}

/// How many pods are not those that there were.
pub(crate) fn started_anew(were: &[Pod], are: &[Pod]) -> usize {
    let known: BTreeSet<_> = were.iter().filter_map(ResourceExt::uid).collect();
    let are = are.iter().filter_map(ResourceExt::uid);
    are.filter(|uid| !known.contains(uid)).count()
}

async fn all_ready(
    cluster: &Cluster,
    selector: Option<&str>,
    number: u32,
    gone: &BTreeSet<String>,
) -> anyhow::Result<Vec<Pod>> {
    seen::all_are(cluster, selector, number, |pod| {
        seen::is_ready(pod) && !gone.contains(&pod.uid().unwrap_or_default())
    })
    .await
}

async fn create(cluster: &Cluster, object: Value) -> anyhow::Result<()> {
    let object: DynamicObject = serde_json::from_value(object)?;
    let types = object.types.as_ref().context("no kind")?;
    let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(types)?);
    let client = cluster.client.clone();
    let api: Api<DynamicObject> = match object.metadata.namespace.as_deref() {
        Some(namespace) => Api::namespaced_with(client, namespace, &resource),
        None => Api::all_with(client, &resource),
    };
    api.create(&PostParams::default(), &object).await?;
    Ok(())
}

/// As the project's examples of training: a worker that fails ends its Job, and all Jobs begin anew.
fn jobset(name: &str, workers: u32) -> Value {
    json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "failurePolicy": {"maxRestarts": 10},
            "replicatedJobs": [{"name": "workers", "template": {"spec": {
                "parallelism": workers, "completions": workers, "backoffLimit": 0,
                "template": {"spec": {"containers": [{"name": "trainer", "image": "trainer"}]}},
            }}}],
        },
    })
}

/// The runtime `torch-distributed` that the project ships, but for its image.
fn runtime() -> Value {
    json!({
        "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "ClusterTrainingRuntime",
        "metadata": {
            "name": "torch-distributed", "labels": {"trainer.kubeflow.org/framework": "torch"},
        },
        "spec": {
            "mlPolicy": {"numNodes": 1, "torch": {"numProcPerNode": "auto"}},
            "template": {"spec": {"replicatedJobs": [{"name": "node", "template": {
                "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
                "spec": {"template": {"spec": {"containers": [{"name": "node", "image": "trainer"}]}}},
            }}]}},
        },
    })
}

fn train_job(name: &str, workers: u32) -> Value {
    json!({
        "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"runtimeRef": {"name": "torch-distributed"}, "trainer": {"numNodes": workers}},
    })
}

impl Figures {
    pub(crate) fn head() -> String {
        let head = "| jobs × workers | | apply → all ready | writes per job | one pod lost → all ready | pods started anew | memory | CPU time |";
        format!("{head}\n|---|---|---|---|---|---|---|---|")
    }

    pub(crate) fn row(&self) -> String {
        let Self {
            who,
            shape: Shape { jobs, workers },
            apply,
            writes_per_job,
            lost,
            started_anew,
            memory,
            cpu,
        } = self;
        format!(
            "| {jobs} × {workers} | {who} | {:.1} s | {writes_per_job:.1} | {:.2} s | {started_anew} | {memory:.0} MiB | {cpu:.1} s |",
            apply.as_secs_f64(),
            lost.as_secs_f64(),
        )
    }

    pub(crate) const fn notes() -> &'static str {
        "Roundhouse is ready when each pod has been told its place in a generation; the others when all pods are ready. Their writes\n\
         are those of the job controller, too; their memory and CPU time are without it. One pod lost: all three replace the pod. The\n\
         processes in the other pods are not simulated: Roundhouse's continue in a new generation; with the others they fail, as their\n\
         collectives do, and begin anew in their pods (torchrun) or with all pods (JobSet's failure policy)."
    }
}
