//! The same jobs with other projects: `JobSet`, and Kubeflow Trainer, which creates `JobSets`. Both
//! create Jobs, and the job controller of Kubernetes creates their pods.

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

/// A project that is compared with Roundhouse.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Project {
    JobSet,
    Trainer,
}

/// The measured values of one project and size.
pub(crate) struct Figures {
    pub(crate) project: &'static str,
    pub(crate) shape: Shape,
    pub(crate) apply: Duration,
    pub(crate) writes_per_job: f64,
    pub(crate) lost: Duration,
    pub(crate) num_new_pods: usize,
    /// Peak memory in MiB, over all processes of the project.
    pub(crate) memory: f64,
    /// CPU time in seconds, over all processes of the project.
    pub(crate) cpu: f64,
}

pub(crate) async fn run(project: Project, shape: Shape) -> anyhow::Result<Figures> {
    let cluster = Cluster::start(shape.pods() + 1).await?;
    let client = cluster.client.clone();
    // The job controller's default of 20 requests per second would be the bottleneck.
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
    if project == Project::Trainer {
        processes.push(TRAINER.install(&cluster.server, &client).await?);
        create(&cluster, runtime()).await?;
    }
    let before = writes(&cluster)?;
    let started = Instant::now();
    let created = iter(0..shape.jobs).map(|number| {
        let name = format!("job-{number}");
        let job = match project {
            Project::JobSet => jobset(&name, shape.workers),
            Project::Trainer => train_job(&name, shape.workers),
        };
        create(&cluster, job)
    });
    let gone = BTreeSet::new();
    let ready = all_ready(&cluster, None, shape.pods(), &gone);
    tokio::try_join!(load::all(created), ready)?;
    let apply = started.elapsed();
    tokio::time::sleep(REST).await;
    let num_writes = writes(&cluster)? - before;
    let cpu = sum(&processes, cpu_time)?;
    let (lost, num_new_pods) = lose_one(&cluster, shape.workers).await?;
    Ok(Figures {
        project: match project {
            Project::JobSet => "JobSet",
            Project::Trainer => "Kubeflow Trainer",
        },
        shape,
        apply,
        writes_per_job: num_writes as f64 / f64::from(shape.jobs),
        lost,
        num_new_pods,
        memory: sum(&processes, peak_memory)?,
        cpu,
    })
}

fn sum(processes: &[u32], of: fn(u32) -> anyhow::Result<f64>) -> anyhow::Result<f64> {
    processes.iter().map(|process| of(*process)).sum()
}

/// Deletes a pod of the first job. Returns the time until all pods are ready again, and the number
/// of new pods.
async fn lose_one(cluster: &Cluster, workers: u32) -> anyhow::Result<(Duration, usize)> {
    let of_job = "jobset.sigs.k8s.io/jobset-name=job-0";
    let before = all_ready(cluster, Some(of_job), workers, &BTreeSet::new()).await?;
    let victim = before.last().context("no pod")?;
    let started = Instant::now();
    load::lose(cluster, &victim.name_any()).await?;
    let gone = BTreeSet::from([victim.uid().unwrap_or_default()]);
    let after = all_ready(cluster, Some(of_job), workers, &gone).await?;
    Ok((started.elapsed(), num_new(&before, &after)))
}

/// The number of pods in `after` that are not in `before`.
pub(crate) fn num_new(before: &[Pod], after: &[Pod]) -> usize {
    let known: BTreeSet<_> = before.iter().filter_map(ResourceExt::uid).collect();
    let uids = after.iter().filter_map(ResourceExt::uid);
    uids.filter(|uid| !known.contains(uid)).count()
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

/// A `JobSet` like the project's training examples: a failed worker fails its Job, and all Jobs
/// restart.
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

/// The runtime `torch-distributed` that the project ships, with another image.
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
        let head = "| jobs × workers | | apply → all ready | writes per job | one pod lost → all ready | new pods | memory | CPU time |";
        format!("{head}\n|---|---|---|---|---|---|---|---|")
    }

    pub(crate) fn row(&self) -> String {
        let Self {
            project,
            shape: Shape { jobs, workers },
            apply,
            writes_per_job,
            lost,
            num_new_pods,
            memory,
            cpu,
        } = self;
        format!(
            "| {jobs} × {workers} | {project} | {:.1} s | {writes_per_job:.1} | {:.2} s | {num_new_pods} | {memory:.0} MiB | {cpu:.1} s |",
            apply.as_secs_f64(),
            lost.as_secs_f64(),
        )
    }

    pub(crate) const fn notes() -> &'static str {
        "Roundhouse is ready when each pod has its membership; the other projects are ready when all pods are ready. Their writes\n\
         include those of the job controller; their memory and CPU time do not. One pod lost: all three replace the pod. The processes\n\
         in the other pods are not simulated: with Roundhouse they continue in a new generation; with the other projects their\n\
         collectives fail, and they restart in their pods (torchrun) or with all pods (JobSet's failure policy)."
    }
}
