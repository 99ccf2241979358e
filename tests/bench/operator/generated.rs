//! More pods than a machine can hold: a simulated API server generates them as copies of one
//! training job. The release build of the operator lists and watches them, and reconciles after
//! changes of single pods.

use std::path::Path;
use std::time::{Duration, Instant};

use roundhouse_tests::cluster::until;
use serde_json::json;
use tempfile::TempDir;

use crate::load::DEADLINE;
use crate::operator::Operator;
use crate::process::{load as load_of, memory, peak_memory, reset_peak};
use crate::run::Shape;

mod reconciles;
mod server;
mod template;

use reconciles::Reconciles;
use server::Server;
use template::Template;

const CHANGES_PER_SECOND: u32 = 100;
const NUM_CHANGES: u32 = 3_000;
/// The wait for the last reconciles after the pods were listed again.
const SETTLE_TIME: Duration = Duration::from_secs(5);
const REST_TIME: Duration = Duration::from_secs(20);

/// The measured values of one size. Memory is in MiB.
pub(crate) struct Figures {
    shape: Shape,
    all_reconciled: Duration,
    peak: f64,
    memory: f64,
    /// The peak while the operator lists all pods again.
    peak_of_relist: f64,
    /// CPU cores at rest.
    at_rest: f64,
    p99: Duration,
    cpu_per_change: Duration,
    writes: usize,
}

pub(crate) async fn run(program: &Path, shape: Shape) -> anyhow::Result<Figures> {
    let template = Template::read(program, shape.workers).await?;
    let server = Server::start(template, shape).await?;
    let directory = TempDir::new()?;
    let kubeconfig = directory.path().join("operator.kubeconfig");
    std::fs::write(&kubeconfig, kubeconfig_of(server.port()))?;
    let started = Instant::now();
    let operator = Operator::start(program, &kubeconfig).await?;
    let reconciles = async || Reconciles::read(operator.port()).await;
    until("all jobs have been reconciled", DEADLINE, || async {
        let num_done = reconciles().await?.count();
        Ok((num_done >= u64::from(shape.jobs)).then_some(()))
    })
    .await?;
    let all_reconciled = started.elapsed();
    let at_rest = load_of(operator.process(), REST_TIME).await?;
    let before = reconciles().await?;
    let pause = Duration::from_secs(1) / CHANGES_PER_SECOND;
    let changes = async {
        let mut ticks = tokio::time::interval(pause);
        for _ in 0..NUM_CHANGES {
            ticks.tick().await;
            server.change_a_pod();
        }
    };
    let load = load_of(operator.process(), pause * NUM_CHANGES);
    let ((), load) = tokio::join!(changes, load);
    until("all changes have been reconciled", DEADLINE, || async {
        let num_done = reconciles().await?.count() - before.count();
        // Two changes of one job within the debounce interval cause one reconcile.
        Ok((num_done * 10 >= u64::from(NUM_CHANGES) * 9).then_some(()))
    })
    .await?;
    let process = operator.process();
    let (peak, memory) = (peak_memory(process)?, memory(process)?);
    let after = reconciles().await?;
    reset_peak(process)?;
    tokio::time::timeout(DEADLINE, server.expire_watch()).await?;
    until("all jobs have been reconciled again", DEADLINE, || async {
        let num_done = reconciles().await?.count() - after.count();
        Ok((num_done >= u64::from(shape.jobs)).then_some(()))
    })
    .await?;
    // Some jobs may have been reconciled twice, and others not yet.
    tokio::time::sleep(SETTLE_TIME).await;
    Ok(Figures {
        shape,
        all_reconciled,
        peak,
        memory,
        peak_of_relist: peak_memory(process)?,
        at_rest,
        p99: after.quantile_since(&before, 0.99),
        cpu_per_change: pause.mul_f64((load? - at_rest).max(0.0)),
        writes: server.writes(),
    })
}

fn kubeconfig_of(port: u16) -> String {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": format!("http://127.0.0.1:{port}")}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    })
    .to_string()
}

impl Figures {
    pub(crate) const fn head() -> &'static str {
        "| jobs × workers | all reconciled after | peak memory | memory then | peak memory while pods are listed again | at rest | CPU per change | time per reconcile, p99 | writes |\n|---|---|---|---|---|---|---|---|---|"
    }

    pub(crate) fn row(&self) -> String {
        let Self {
            shape: Shape { jobs, workers },
            all_reconciled,
            peak,
            memory,
            peak_of_relist,
            at_rest,
            p99,
            cpu_per_change,
            writes,
        } = self;
        format!(
            "| {jobs} × {workers} | {:.1} s | {peak:.0} MiB | {memory:.0} MiB | {peak_of_relist:.0} MiB | {:.1} % of a core | {:.2} ms | ≤ {} ms | {writes} |",
            all_reconciled.as_secs_f64(),
            100.0 * at_rest,
            1e3 * cpu_per_change.as_secs_f64(),
            p99.as_secs_f64() * 1e3,
        )
    }

    pub(crate) fn notes() -> String {
        format!(
            "A simulated API server generates the pods as copies of a training job. All reconciled: from the operator's start, including\n\
             its lists. Then {CHANGES_PER_SECOND} pods change per second, {NUM_CHANGES} in all. Time per reconcile: with its writes, the upper bound of a bucket of\n\
             the operator's histogram. No agents answer here."
        )
    }
}
