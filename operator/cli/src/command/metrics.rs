//! `metrics`: what a worker's `/metrics` says now.

use std::process::ExitCode;

use anyhow::Context;
use roundhouse_contract::ports;

use crate::cluster::Cluster;
use crate::out::plain;

pub(crate) async fn print(cluster: &Cluster, name: &str, filter: &str) -> anyhow::Result<ExitCode> {
    let job = cluster.wanted_job(name).await?;
    if let Some(status) = job.status.as_ref().filter(|status| status.is_terminal()) {
        let state = status.conditions.first().map_or("", |first| &first.reason);
        anyhow::bail!("{name} has ended ({state}): workers have metrics while they run");
    }
    let pod = cluster.first_worker(&job).await?;
    let pod = pod.with_context(|| format!("{name} has no worker that trains"))?;
    let text = cluster.ask(&pod, ports::METRICS_PATH).await;
    let text = text.with_context(|| format!("{pod} cannot be asked: has it ended?"))?;
    for line in text
        .lines()
        .filter(|line| !line.starts_with('#') && line.contains(filter))
    {
        println!("{}", plain(line));
    }
    Ok(ExitCode::SUCCESS)
}
