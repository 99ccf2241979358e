//! Measures the operator with one number of jobs and workers.

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

/// The number of jobs, and the number of workers of each job.
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
        let (jobs, workers) = text
            .split_once('x')
            .context("a size must have the form JOBSxWORKERS")?;
        let (jobs, workers) = (jobs.parse()?, workers.parse()?);
        Ok(Self { jobs, workers })
    }
}

/// The measured values for one size.
pub(crate) struct Figures {
    pub(crate) shape: Shape,
    bare: Bare,
    apply: Duration,
    lost: Duration,
    num_new_pods: usize,
    writes_per_job: f64,
    writes_at_rest: usize,
    /// CPU cores of the operator at rest.
    load_at_rest: f64,
    /// CPU time of the operator, in seconds.
    cpu: f64,
    /// The operator's peak memory in MiB.
    memory: f64,
}

/// Measures one size in a new cluster.
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
    let after = writes(&cluster)?;
    let cpu = cpu_time(operator.process())?;
    let load_at_rest = load_of(operator.process(), REST).await?;
    let writes_at_rest = writes(&cluster)? - after;
    let (lost, num_new_pods) = lose_one(&cluster, shape.workers).await?;
    Ok(Figures {
        shape,
        bare,
        apply,
        lost,
        num_new_pods,
        writes_per_job: (after - before) as f64 / f64::from(shape.jobs),
        writes_at_rest,
        load_at_rest,
        cpu,
        memory: peak_memory(operator.process())?,
    })
}

/// A pod as the operator creates it, but without an owner.
async fn template(cluster: &Cluster) -> anyhow::Result<k8s_openapi::api::core::v1::Pod> {
    let one = Shape {
        jobs: 1,
        workers: 1,
    };
    // The name differs from those of the measured jobs: no garbage collector runs here, so the
    // Service of this deleted job remains.
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

/// Deletes a worker of the first job. Returns the time until all workers have the next membership,
/// and the number of new pods.
async fn lose_one(cluster: &Cluster, workers: u32) -> anyhow::Result<(Duration, usize)> {
    let pods = load::pods(cluster);
    let of_job = ListParams::default().labels(&load::of_job("job-0"));
    let before = pods.list(&of_job).await?;
    let victim = before.items.last().context("no worker")?.name_any();
    let started = Instant::now();
    load::lose(cluster, &victim).await?;
    load::trains(cluster, "job-0", workers, 2).await?;
    let took = started.elapsed();
    let after = pods.list(&of_job).await?;
    Ok((took, peers::num_new(&before.items, &after.items)))
}

/// The number of the operator's requests that change objects.
pub(crate) fn writes(cluster: &Cluster) -> anyhow::Result<usize> {
    let calls = cluster.server.operator_calls()?;
    let reads = ["get "];
    Ok(calls
        .iter()
        .filter(|call| !reads.iter().any(|read| call.starts_with(read)))
        .count())
}

impl Figures {
    /// The values that are compared with other projects.
    pub(crate) const fn for_comparison(&self) -> peers::Figures {
        peers::Figures {
            project: "Roundhouse",
            shape: self.shape,
            apply: self.apply,
            writes_per_job: self.writes_per_job,
            lost: self.lost,
            num_new_pods: self.num_new_pods,
            memory: self.memory,
            cpu: self.cpu,
        }
    }

    pub(crate) fn head() -> String {
        let head = "| jobs × workers | bare client: create, write | operator | rate of create, of both | writes per job, 8 + 2·workers | one worker lost; as many writes of the bare client | memory | CPU time | at rest: CPU, writes |";
        format!("{head}\n|---|---|---|---|---|---|---|---|---|")
    }

    pub(crate) fn row(&self) -> String {
        let Self {
            shape,
            bare: Bare { create, write },
            apply,
            lost,
            num_new_pods: _,
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
            write.as_secs_f64(),
            apply.as_secs_f64(),
            rate(*create),
            rate(*create + *write),
            8 + 2 * workers,
            lost.as_secs_f64(),
            write.as_secs_f64() / f64::from(*jobs),
            100.0 * load_at_rest,
        )
    }

    pub(crate) const fn notes() -> &'static str {
        "Bare client: 16 concurrent requests create the same pods without an operator until all are ready; then they write to each pod\n\
         once, with as many bytes as a membership. Operator: from the first apply until each pod has the membership of generation 1, also\n\
         two writes per pod. Rates: those of the operator, where the bare client's are 100 %. One worker lost: from its deletion until its\n\
         successor is ready and all workers have the membership of generation 2. Memory: the peak. CPU time: of the operator until it rests."
    }
}
