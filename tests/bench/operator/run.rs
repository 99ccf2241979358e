//! The figures of one size.

use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::Context;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};

use crate::bare::{self, Bare};
use crate::cluster::Cluster;
use crate::load::{self, REST};
use crate::operator::Operator;
use crate::peers;
use crate::process::{cpu_time, load as load_of, peak_memory};

/// How many jobs of how many workers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) jobs: u32,
    pub(crate) workers: u32,
}

impl Shape {
    pub(crate) const fn pods(self) -> u32 {
        self.jobs * self.workers
    }
}

impl FromStr for Shape {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (jobs, workers) = text.split_once('x').context("give JOBSxWORKERS")?;
        let (jobs, workers) = (jobs.parse()?, workers.parse()?);
        Ok(Self { jobs, workers })
    }
}

/// What was measured.
pub(crate) struct Figures {
    pub(crate) shape: Shape,
    bare: Bare,
    apply: Duration,
    lost: Duration,
    started_anew: usize,
    writes_per_job: f64,
    writes_at_rest: usize,
    load_at_rest: f64,
    cpu: f64,
    memory: f64,
}

/// Each size has a cluster of its own.
pub(crate) async fn run(program: &Path, shape: Shape) -> anyhow::Result<Figures> {
    let cluster = Cluster::start(shape.pods() + 1).await?;
    let operator = Operator::start(program, &cluster.kubeconfig).await?;
    let like = template(&cluster).await?;
    drop(operator);
    let bare = bare::run(&cluster, &like, shape.pods()).await?;

    let operator = Operator::start(program, &cluster.kubeconfig).await?;
    let before = writes(&cluster)?;
    let apply = load::apply(&cluster, "job", shape).await?;
    tokio::time::sleep(REST).await;
    let made = writes(&cluster)?;
    let cpu = cpu_time(operator.process())?;
    let load_at_rest = load_of(operator.process(), REST).await?;
    let writes_at_rest = writes(&cluster)? - made;
    let (lost, started_anew) = lose_one(&cluster, shape.workers).await?;
    Ok(Figures {
        shape,
        bare,
        apply,
        lost,
        started_anew,
        writes_per_job: (made - before) as f64 / f64::from(shape.jobs),
        writes_at_rest,
        load_at_rest,
        cpu,
        memory: peak_memory(operator.process())?,
    })
}

/// A pod as the operator makes it, but of nobody.
async fn template(cluster: &Cluster) -> anyhow::Result<k8s_openapi::api::core::v1::Pod> {
    let one = Shape {
        jobs: 1,
        workers: 1,
    };
    // Under a name of its own: nobody collects the service of a deleted job here.
    load::apply(cluster, "template", one).await?;
    let pods = load::pods(cluster).list(&ListParams::default()).await?;
    let mut like = pods.items.into_iter().next().context("no pod")?;
    load::jobs(cluster)
        .delete("template-0", &DeleteParams::default())
        .await?;
    load::clear(cluster).await?;
    like.metadata.labels = None;
    like.metadata.owner_references = None;
    like.metadata.resource_version = None;
    like.metadata.uid = None;
    like.status = None;
    let spec = like.spec.as_mut().context("no spec")?;
    spec.node_name = None;
    Ok(like)
}

/// Deletes a worker of the first job; returns when all have been told the next generation, and how many pods are not those
/// that there were.
async fn lose_one(cluster: &Cluster, workers: u32) -> anyhow::Result<(Duration, usize)> {
    let pods = load::pods(cluster);
    let of_job = ListParams::default().labels(&load::of_job("job-0"));
    let were = pods.list(&of_job).await?;
    let victim = were.items.last().context("no worker")?.name_any();
    let begun = Instant::now();
    load::lose(cluster, &victim).await?;
    load::trains(cluster, "job-0", workers, 2).await?;
    let took = begun.elapsed();
    let are = pods.list(&of_job).await?;
    Ok((took, peers::started_anew(&were.items, &are.items)))
}

/// Calls of the operator that change something.
pub(crate) fn writes(cluster: &Cluster) -> anyhow::Result<usize> {
    let calls = cluster.server.operator_calls()?;
    let reads = ["get "];
    Ok(calls
        .iter()
        .filter(|call| !reads.iter().any(|read| call.starts_with(read)))
        .count())
}

impl Figures {
    /// As those of the other projects.
    pub(crate) const fn beside(&self) -> peers::Figures {
        peers::Figures {
            who: "Roundhouse",
            shape: self.shape,
            apply: self.apply,
            writes_per_job: self.writes_per_job,
            lost: self.lost,
            started_anew: self.started_anew,
            memory: self.memory,
            cpu: self.cpu,
        }
    }

    pub(crate) fn head() -> String {
        let head = "| jobs × workers | bare client: create, tell | operator | rate of create, of both | writes per job, 8 + 2·workers | one worker lost; bare client tells as many | memory | CPU time | at rest: CPU, writes |";
        format!("{head}\n|---|---|---|---|---|---|---|---|---|")
    }

    pub(crate) fn row(&self) -> String {
        let Self {
            shape,
            bare: Bare { create, tell },
            apply,
            lost,
            started_anew: _,
            writes_per_job,
            writes_at_rest,
            load_at_rest,
            cpu,
            memory,
        } = self;
        let Shape { jobs, workers } = shape;
        let rate = |bare: Duration| 100.0 * bare.as_secs_f64() / apply.as_secs_f64();
        format!(
            "| {jobs} × {workers} | {:.1} s, {:.1} s | {:.1} s | {:.0} %, {:.0} % | {writes_per_job:.1}, {} | {:.2} s; {:.2} s | {memory:.0} MiB | {cpu:.1} s | {:.1} %, {writes_at_rest} |",
            create.as_secs_f64(),
            tell.as_secs_f64(),
            apply.as_secs_f64(),
            rate(*create),
            rate(*create + *tell),
            8 + 2 * workers,
            lost.as_secs_f64(),
            tell.as_secs_f64() / f64::from(*jobs),
            100.0 * load_at_rest,
        )
    }

    pub(crate) const fn notes() -> &'static str {
        "Bare client: 16 calls at once create the same pods without an operator, until all are ready; then they write to each of them\n         once, as many bytes as its place in a generation has. Operator: from the first apply until each pod has been told its place in\n         generation 1, two writes as well. Rates: of the operator, where the bare client's is 100 %. One worker lost: from its deletion\n         until its successor is ready and all have been told generation 2. Memory: most so far. CPU time: of the operator until it rests."
    }
}
