//! More pods than a machine can have: an API server that makes them up, as copies of one job that trains, and the operator
//! as it is shipped. It lists them, watches them, and is woken by changes of single pods.

use std::path::Path;
use std::time::{Duration, Instant};

use roundhouse_tests::cluster::until;
use serde_json::json;
use tempfile::TempDir;

use crate::load::DEADLINE;
use crate::operator::Operator;
use crate::process::{forget_peak, load as load_of, memory, peak_memory};
use crate::run::Shape;

mod reconciles;
mod server;
mod template;

use reconciles::Reconciles;
use server::Server;
use template::Template;

/// Changes of pods, so many in a second.
const WAKES_PER_SECOND: u32 = 100;
const WAKES: u32 = 3_000;
/// Between the list and the last look at a job.
const SETTLES: Duration = Duration::from_secs(5);
const AT_REST: Duration = Duration::from_secs(20);

/// What was measured.
pub(crate) struct Figures {
    shape: Shape,
    all_looked_at: Duration,
    peak: f64,
    memory: f64,
    listed_again: f64,
    at_rest: f64,
    p99: Duration,
    cpu_per_wake: Duration,
    writes: usize,
}

pub(crate) async fn run(program: &Path, shape: Shape) -> anyhow::Result<Figures> {
    let template = Template::take(program, shape.workers).await?;
    let server = Server::start(template, shape).await?;
    let directory = TempDir::new()?;
    let kubeconfig = directory.path().join("operator.kubeconfig");
    std::fs::write(&kubeconfig, kubeconfig_of(server.port()))?;
    let begun = Instant::now();
    let operator = Operator::start(program, &kubeconfig).await?;
    let reconciles = async || Reconciles::read(operator.port()).await;
    until("all jobs have been looked at", DEADLINE, || async {
        let num_done = reconciles().await?.count();
        Ok((num_done >= u64::from(shape.jobs)).then_some(()))
    })
    .await?;
    let all_looked_at = begun.elapsed();
    let at_rest = load_of(operator.process(), AT_REST).await?;
    let before = reconciles().await?;
    let pause = Duration::from_secs(1) / WAKES_PER_SECOND;
    let wakes = async {
        let mut ticks = tokio::time::interval(pause);
        for _ in 0..WAKES {
            ticks.tick().await;
            server.change_a_pod();
        }
    };
    let load = load_of(operator.process(), pause * WAKES);
    let ((), load) = tokio::join!(wakes, load);
    until("all wakes are worked on", DEADLINE, || async {
        let num_done = reconciles().await?.count() - before.count();
        // Two changes of one job within the pause that they are gathered in are one wake.
        Ok((num_done * 10 >= u64::from(WAKES) * 9).then_some(()))
    })
    .await?;
    let process = operator.process();
    let (peak, memory) = (peak_memory(process)?, memory(process)?);
    let woken = reconciles().await?;
    forget_peak(process)?;
    tokio::time::timeout(DEADLINE, server.forget_changes()).await?;
    until("all jobs have been looked at again", DEADLINE, || async {
        let num_done = reconciles().await?.count() - woken.count();
        Ok((num_done >= u64::from(shape.jobs)).then_some(()))
    })
    .await?;
    // Some may have been looked at twice, and others not yet.
    tokio::time::sleep(SETTLES).await;
    Ok(Figures {
        shape,
        all_looked_at,
        peak,
        memory,
        listed_again: peak_memory(process)?,
        at_rest,
        p99: woken.quantile_since(&before, 0.99),
        cpu_per_wake: pause.mul_f64((load? - at_rest).max(0.0)),
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
        "| jobs × workers | all looked at after | memory, most | memory, then | memory, most while pods are listed again | at rest | CPU per wake | time per wake, p99 | writes |\n|---|---|---|---|---|---|---|---|---|"
    }

    pub(crate) fn row(&self) -> String {
        let Self {
            shape: Shape { jobs, workers },
            all_looked_at,
            peak,
            memory,
            listed_again,
            at_rest,
            p99,
            cpu_per_wake,
            writes,
        } = self;
        format!(
            "| {jobs} × {workers} | {:.1} s | {peak:.0} MiB | {memory:.0} MiB | {listed_again:.0} MiB | {:.1} % of a core | {:.2} ms | ≤ {} ms | {writes} |",
            all_looked_at.as_secs_f64(),
            100.0 * at_rest,
            1e3 * cpu_per_wake.as_secs_f64(),
            p99.as_secs_f64() * 1e3,
        )
    }

    pub(crate) fn notes() -> String {
        format!(
            "An API server of the benchmark makes up the pods as copies of a job that trains. All looked at: from the operator's start,\n\
             the lists among it. Then {WAKES_PER_SECOND} pods change in a second, {WAKES} in all. Time per wake: of a reconcile with its writes, as the\n\
             operator's metrics have it, the bound of a bucket. Agents do not answer here."
        )
    }
}
