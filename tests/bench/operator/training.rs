//! Many jobs that train: how often the operator writes how far they are, and how old that is. The agents are one HTTP server,
//! which takes a step a second for all jobs: the addresses that KWOK gives to pods are all of this machine.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use http::Response;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kube::api::ListParams;
use roundhouse_contract::ports::AGENT_HTTP;
use roundhouse_contract::{Progress, ProgressReport};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

use crate::cluster::Cluster;
use crate::load;
use crate::operator::Operator;
use crate::process::{load as load_of, peak_memory};
use crate::run::{Shape, writes};

/// Until each job was asked and written at least once.
const SETTLES: Duration = Duration::from_secs(90);
/// Some turns of each job, which take up to a minute: all jobs may have theirs at the same time.
const MEASURED: Duration = Duration::from_mins(5);
/// Between two looks at all statuses.
const LOOK: Duration = Duration::from_secs(10);

/// What was measured.
pub(crate) struct Figures {
    jobs: u32,
    writes_per_second: f64,
    oldest: Duration,
    load: f64,
    memory: f64,
}

pub(crate) async fn run(program: &Path, jobs: u32) -> anyhow::Result<Figures> {
    let agents = Agents::start().await?;
    let cluster = Cluster::start(jobs + 1).await?;
    let operator = Operator::start(program, &cluster.kubeconfig).await?;
    load::apply(&cluster, "job", Shape { jobs, workers: 1 }).await?;
    tokio::time::sleep(SETTLES).await;
    let (before, begun) = (writes(&cluster)?, Instant::now());
    let (load, oldest) = tokio::join!(
        load_of(operator.process(), MEASURED),
        oldest(&cluster, &agents)
    );
    let written = (writes(&cluster)? - before) as f64;
    Ok(Figures {
        jobs,
        writes_per_second: written / begun.elapsed().as_secs_f64(),
        oldest: oldest?,
        load: load?,
        memory: peak_memory(operator.process())?,
    })
}

/// How old the oldest step of a status was.
async fn oldest(cluster: &Cluster, agents: &Agents) -> anyhow::Result<Duration> {
    let mut oldest = 0;
    for _ in 0..MEASURED.as_secs() / LOOK.as_secs() {
        tokio::time::sleep(LOOK).await;
        let now = agents.step();
        for job in load::jobs(cluster).list(&ListParams::default()).await? {
            let status = job.status.context("a job without a status")?;
            let step = status.progress.map_or(0, |told| told.progress.step);
            oldest = oldest.max(now.saturating_sub(step));
        }
    }
    Ok(Duration::from_secs(oldest))
}

/// The agents of all pods; they end with the value.
struct Agents {
    begun: Arc<Instant>,
    server: AbortHandle,
}

impl Agents {
    async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("0.0.0.0", AGENT_HTTP)).await;
        let listener = listener.with_context(|| format!("port {AGENT_HTTP}, which agents have"))?;
        let begun = Arc::new(Instant::now());
        let server = tokio::spawn(serve(listener, Arc::clone(&begun)));
        Ok(Self {
            begun,
            server: server.abort_handle(),
        })
    }

    fn step(&self) -> u64 {
        self.begun.elapsed().as_secs()
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn serve(listener: TcpListener, begun: Arc<Instant>) {
    while let Ok((stream, _)) = listener.accept().await {
        let begun = Arc::clone(&begun);
        let answer = service_fn(move |_| {
            let told = told(begun.elapsed().as_secs());
            async move { Ok::<_, Infallible>(Response::new(Full::new(told))) }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), answer);
        tokio::spawn(connection);
    }
}

fn told(step: u64) -> Bytes {
    let progress = Progress {
        generation: 1,
        world_size: 1,
        step,
        total_steps: 1_000_000,
        ..Progress::default()
    };
    let report = ProgressReport {
        job_uid: None,
        report: progress,
    };
    Bytes::from(serde_json::to_vec(&report).unwrap_or_default())
}

impl Figures {
    pub(crate) const fn head() -> &'static str {
        "| jobs that train | writes per second | oldest step in a status | CPU | memory |\n|---|---|---|---|---|"
    }

    pub(crate) fn row(&self) -> String {
        let Self {
            jobs,
            writes_per_second,
            oldest,
            load,
            memory,
        } = self;
        format!(
            "| {jobs} | {writes_per_second:.1} | {} s | {:.1} % of a core | {memory:.0} MiB |",
            oldest.as_secs(),
            100.0 * load,
        )
    }
}
