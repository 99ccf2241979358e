//! Many training jobs: how often the operator writes their progress, and how old the written
//! progress is. One HTTP server stands for all agents, because KWOK gives addresses of this machine
//! to all pods. It reports one step per second for all jobs.

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

/// The wait until the operator has polled and written each job at least once.
const SETTLE_TIME: Duration = Duration::from_secs(90);
/// The operator writes the progress of each job within a minute, so this covers several writes of
/// each.
const MEASURE_TIME: Duration = Duration::from_mins(5);
/// The interval between two reads of all statuses.
const POLL_INTERVAL: Duration = Duration::from_secs(10);

/// The measured values for one number of jobs.
pub(crate) struct Figures {
    jobs: u32,
    writes_per_second: f64,
    oldest: Duration,
    /// CPU cores of the operator.
    load: f64,
    /// The operator's peak memory in MiB.
    memory: f64,
}

pub(crate) async fn run(program: &Path, jobs: u32) -> anyhow::Result<Figures> {
    let agents = Agents::start().await?;
    let cluster = Cluster::start(jobs + 1).await?;
    let operator = Operator::start(program, &cluster.kubeconfig).await?;
    load::apply(&cluster, "job", Shape { jobs, workers: 1 }).await?;
    tokio::time::sleep(SETTLE_TIME).await;
    let (before, started) = (writes(&cluster)?, Instant::now());
    let (load, oldest) = tokio::join!(
        load_of(operator.process(), MEASURE_TIME),
        oldest(&cluster, &agents)
    );
    let written = (writes(&cluster)? - before) as f64;
    Ok(Figures {
        jobs,
        writes_per_second: written / started.elapsed().as_secs_f64(),
        oldest: oldest?,
        load: load?,
        memory: peak_memory(operator.process())?,
    })
}

/// The greatest age of a step in any status.
async fn oldest(cluster: &Cluster, agents: &Agents) -> anyhow::Result<Duration> {
    let mut oldest = 0;
    for _ in 0..MEASURE_TIME.as_secs() / POLL_INTERVAL.as_secs() {
        tokio::time::sleep(POLL_INTERVAL).await;
        let now = agents.step();
        for job in load::jobs(cluster).list(&ListParams::default()).await? {
            let status = job.status.context("a job without a status")?;
            let step = status.progress.map_or(0, |it| it.progress.step);
            oldest = oldest.max(now.saturating_sub(step));
        }
    }
    Ok(Duration::from_secs(oldest))
}

/// The server of all agents. It ends when the value is dropped.
struct Agents {
    started: Arc<Instant>,
    server: AbortHandle,
}

impl Agents {
    async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("0.0.0.0", AGENT_HTTP)).await;
        let listener =
            listener.with_context(|| format!("port {AGENT_HTTP} of the agents is not free"))?;
        let started = Arc::new(Instant::now());
        let server = tokio::spawn(serve(listener, Arc::clone(&started)));
        Ok(Self {
            started,
            server: server.abort_handle(),
        })
    }

    fn step(&self) -> u64 {
        self.started.elapsed().as_secs()
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn serve(listener: TcpListener, started: Arc<Instant>) {
    while let Ok((stream, _)) = listener.accept().await {
        let started = Arc::clone(&started);
        let answer = service_fn(move |_| {
            let report = report(started.elapsed().as_secs());
            async move { Ok::<_, Infallible>(Response::new(Full::new(report))) }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), answer);
        tokio::spawn(connection);
    }
}

fn report(step: u64) -> Bytes {
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
        "| training jobs | writes per second | oldest step in a status | CPU | memory |\n|---|---|---|---|---|"
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
