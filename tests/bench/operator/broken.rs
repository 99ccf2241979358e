//! Jobs that cannot start, beside a healthy job: how much they delay the healthy job's recovery.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use futures::StreamExt as _;
use futures::stream::iter;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{Namespace, ResourceQuota};
use kube::ResourceExt;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use roundhouse_api::TrainingJob;
use roundhouse_tests::cluster::until;
use serde_json::{Value, json};

use crate::cluster::{Cluster, NAMESPACE};
use crate::load::{self, DEADLINE};
use crate::operator::Operator;
use crate::process::{load as load_of, peak_memory};
use crate::run::Shape;

/// The namespaces of the broken jobs, each with its obstacle.
const OBSTACLES: [(&str, &str); 4] = [
    ("silent-webhook", "a webhook for pods that never answers"),
    ("no-quota", "a quota of 0 pods"),
    ("no-node", "pods that fit on no node"),
    ("no-image", "an image that cannot be pulled"),
];
const INCIDENTS: u64 = 7;
const WORKERS: u32 = 10;
/// The wait until the operator has retried each job a few times with its back-off.
const SETTLE_TIME: Duration = Duration::from_secs(60);
const MEASURE_TIME: Duration = Duration::from_secs(30);

/// The measured values for one number of broken jobs.
pub(crate) struct Figures {
    num_broken: u32,
    incidents: Vec<Duration>,
    /// CPU cores of the operator.
    load: f64,
    /// The operator's peak memory in MiB.
    memory: f64,
}

/// Measures the healthy job alone, then beside `num_broken` jobs.
pub(crate) async fn run(program: &Path, num_broken: u32) -> anyhow::Result<[Figures; 2]> {
    // The kernel accepts connections, and no program reads from them.
    let silent = std::net::TcpListener::bind(("127.0.0.1", 0))?;
    let cluster = Cluster::start(num_broken + WORKERS + 1).await?;
    let operator = Operator::start(program, &cluster.kubeconfig).await?;
    let healthy = Shape {
        jobs: 1,
        workers: WORKERS,
    };
    load::apply(&cluster, "job", healthy).await?;
    let figures = async |num_broken, first| {
        Ok::<_, anyhow::Error>(Figures {
            num_broken,
            load: load_of(operator.process(), MEASURE_TIME).await?,
            incidents: incidents(&cluster, first).await?,
            memory: peak_memory(operator.process())?,
        })
    };
    let alone = figures(0, 1).await?;
    let port = silent.local_addr()?.port();
    break_namespaces(&cluster, port).await?;
    let broken = iter(0..num_broken).map(|number| {
        let (namespace, _) = OBSTACLES[number as usize % OBSTACLES.len()];
        create_in(&cluster, namespace, format!("broken-{number}"))
    });
    load::all(broken).await?;
    all_reconciled(&cluster, num_broken).await?;
    tokio::time::sleep(SETTLE_TIME).await;
    let beside = figures(num_broken, 1 + INCIDENTS).await?;
    Ok([alone, beside])
}

/// The times from each loss of a worker until all workers have the next membership, in order of
/// size.
async fn incidents(cluster: &Cluster, first: u64) -> anyhow::Result<Vec<Duration>> {
    let mut took = Vec::new();
    for generation in first..first + INCIDENTS {
        let pods = load::pods(cluster).list(&ListParams::default()).await?;
        let victim = pods.items.first().context("no worker")?.name_any();
        let started = Instant::now();
        load::lose(cluster, &victim).await?;
        load::trains(cluster, "job-0", WORKERS, generation + 1).await?;
        took.push(started.elapsed());
    }
    took.sort();
    Ok(took)
}

async fn break_namespaces(cluster: &Cluster, silent_port: u16) -> anyhow::Result<()> {
    let namespaces = OBSTACLES.map(|(name, _)| json!({"metadata": {"name": name}}));
    cluster.create::<Namespace>(&namespaces).await?;
    let [(webhook, _), (quota, _), ..] = OBSTACLES;
    let silent = json!({
        "metadata": {"name": webhook},
        "webhooks": [{
            "name": "silent.example.com", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "failurePolicy": "Fail", "timeoutSeconds": 10,
            "clientConfig": {"url": format!("https://127.0.0.1:{silent_port}/")},
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": webhook}},
            "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        }],
    });
    cluster
        .create::<ValidatingWebhookConfiguration>(&[silent])
        .await?;
    let quotas: Api<ResourceQuota> = Api::namespaced(cluster.client.clone(), quota);
    let hard = json!({"hard": {"pods": "0"}});
    create(&quotas, json!({"metadata": {"name": "none"}, "spec": hard})).await?;
    // The quota controller, which usually writes this status, does not run here.
    let status = json!({"status": {"hard": {"pods": "0"}, "used": {"pods": "0"}}});
    let parameters = PatchParams::default();
    quotas
        .patch_status("none", &parameters, &Patch::Merge(status))
        .await?;
    Ok(())
}

async fn create<K>(api: &Api<K>, object: Value) -> anyhow::Result<()>
where
    K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let object = serde_json::from_value(object)?;
    api.create(&PostParams::default(), &object).await?;
    Ok(())
}

async fn create_in(cluster: &Cluster, namespace: &str, name: String) -> anyhow::Result<()> {
    let mut job = load::job(&name, 2);
    let [_, _, (no_node, _), (no_image, _)] = OBSTACLES;
    let template = &mut job["spec"]["workers"]["template"];
    if namespace == no_node {
        *template = json!({"spec": {"nodeSelector": {"no": "where"}}});
    } else if namespace == no_image {
        *template = json!({"metadata": {"labels": {"bench.roundhouse.dev/image": "missing"}}});
    }
    let jobs: Api<TrainingJob> = Api::namespaced(cluster.client.clone(), namespace);
    create(&jobs, job).await
}

async fn all_reconciled(cluster: &Cluster, num_broken: u32) -> anyhow::Result<()> {
    let jobs: Api<TrainingJob> = Api::all(cluster.client.clone());
    until("all broken jobs have a status", DEADLINE, || async {
        let all = jobs.list(&ListParams::default()).await?;
        let broken = all.iter().filter(|job| {
            let is_broken = job.namespace().is_some_and(|it| it != NAMESPACE);
            is_broken && job.status.is_some()
        });
        Ok((broken.count() >= num_broken as usize).then_some(()))
    })
    .await
}

impl Figures {
    pub(crate) const fn head() -> &'static str {
        "| broken jobs | one worker lost: median | slowest | CPU | memory |\n|---|---|---|---|---|"
    }

    pub(crate) fn row(&self) -> String {
        let Self {
            num_broken,
            incidents,
            load,
            memory,
        } = self;
        format!(
            "| {num_broken} | {:.2} s | {:.2} s | {:.1} % of a core | {memory:.0} MiB |",
            incidents[incidents.len() / 2].as_secs_f64(),
            incidents.last().copied().unwrap_or_default().as_secs_f64(),
            100.0 * load,
        )
    }

    pub(crate) fn notes() -> String {
        let obstacles = OBSTACLES.map(|(_, what)| what).join("; ");
        format!(
            "A job of {WORKERS} workers loses one worker {INCIDENTS} times. Each broken job has one of these obstacles: {obstacles}."
        )
    }
}
