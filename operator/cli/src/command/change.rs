//! `scale`, `suspend`, `resume` and `stop`: each makes one change to one job.

use std::process::ExitCode;

use anyhow::{bail, ensure};
use roundhouse_api::TrainingJob;
use roundhouse_contract::Mode;
use roundhouse_planner::status::counted;
use serde_json::json;

use super::Outcome;
use crate::cluster::{Cluster, DryRun};
use crate::out::{self, Format};

#[derive(Debug, clap::Args)]
pub(crate) struct Scale {
    /// Name of the job.
    name: String,
    /// Number of workers. The present workers keep training while others join or leave.
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    replicas: u32,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
pub(crate) struct One {
    /// Name of the job.
    name: String,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Copy, Debug, clap::Args)]
struct Common {
    #[command(flatten)]
    dry_run: DryRun,
    /// Print the job as a document instead of a sentence.
    #[arg(short, long, value_enum)]
    output: Option<Format>,
}

pub(crate) async fn scale(cluster: &Cluster, options: &Scale) -> Outcome {
    let Scale {
        name,
        replicas,
        common,
    } = options;
    let job = living(cluster, name, "scaled").await?;
    let workers = &job.spec.workers;
    if let Some(min) = workers.min_replicas.filter(|min| min > replicas) {
        bail!(
            "{name} needs at least {min} workers (workers.minReplicas): give {min} or more, or lower minReplicas in your file"
        );
    }
    if let Some(max) = workers.max_replicas.filter(|max| max < replicas) {
        bail!(
            "{name} may have {max} workers at most (workers.maxReplicas): give {max} or fewer, or raise maxReplicas in your file"
        );
    }
    let before = workers.replicas;
    let patch = json!({"spec": {"workers": {"replicas": replicas}}});
    let changed = cluster.patch(name, &patch, common.dry_run).await?;
    let wanted = counted(*replicas, "worker");
    let sentence = match before {
        before if before == *replicas => format!("{name} has {wanted} already"),
        before => format!("{name} is scaled from {before} to {wanted}"),
    };
    report(&changed, *common, &sentence)
}

#[derive(Debug, clap::Args)]
pub(crate) struct Suspend {
    #[command(flatten)]
    one: One,
    /// Suspend the job although it has no spec.checkpoint and loses its training progress.
    #[arg(long)]
    yes: bool,
}

pub(crate) async fn suspend(cluster: &Cluster, options: &Suspend) -> Outcome {
    let Suspend {
        one: One { name, common },
        yes,
    } = options;
    let job = living(cluster, name, "suspended").await?;
    let (saves, resumes) = match (&job.spec.checkpoint, job.spec.suspend) {
        (_, true) => return report(&job, *common, &format!("{name} is suspended already")),
        (Some(_), false) => (
            "its workers save a checkpoint and leave",
            "lets it continue from there",
        ),
        (None, false) if keeps_its_own_state(&job) => (
            "its workers leave",
            "starts its script again, which must load its own checkpoint",
        ),
        (None, false) => {
            ensure!(
                *yes || common.dry_run.is_on || !has_trained(&job),
                "{name} has no spec.checkpoint, so its training progress would be lost: give --yes to suspend it anyway"
            );
            (
                "its workers leave, and its training progress is lost, because it has no spec.checkpoint",
                "starts it again at step 0",
            )
        }
    };
    let changed = cluster
        .patch(name, &json!({"spec": {"suspend": true}}), common.dry_run)
        .await?;
    let sentence =
        format!("{name} is suspended: {saves}. `kubectl roundhouse resume {name}` {resumes}");
    report(&changed, *common, &sentence)
}

fn has_trained(job: &TrainingJob) -> bool {
    let status = job.status.as_ref();
    status.is_some_and(|status| status.membership.is_some())
}

/// Whether the job's script manages its own checkpoints, because it is restarted with each
/// generation.
fn keeps_its_own_state(job: &TrainingJob) -> bool {
    job.spec.elastic.mode == Mode::Restart
}

pub(crate) async fn resume(cluster: &Cluster, options: &One) -> Outcome {
    let One { name, common } = options;
    let job = living(cluster, name, "resumed").await?;
    if !job.spec.suspend {
        return report(&job, *common, &format!("{name} is not suspended"));
    }
    let changed = cluster
        .patch(name, &json!({"spec": {"suspend": false}}), common.dry_run)
        .await?;
    let sentence = format!("{name} is resumed. `kubectl roundhouse watch {name}` follows it");
    report(&changed, *common, &sentence)
}

pub(crate) async fn stop(cluster: &Cluster, options: &One) -> Outcome {
    let One { name, common } = options;
    let job = cluster.wanted_job(name).await?;
    let ended = job
        .status
        .as_ref()
        .is_some_and(roundhouse_api::TrainingJobStatus::is_terminal);
    let rest = match (&job.spec.checkpoint, ended) {
        (None, true) => "it had ended",
        (Some(_), true) => {
            "it had ended; its checkpoints stay, and a job of this name continues from them"
        }
        (Some(_), false) => {
            "its workers save a checkpoint and leave; a job of this name continues from there"
        }
        (None, false) if keeps_its_own_state(&job) => {
            "its workers leave; the checkpoints of its script stay"
        }
        (None, false) => {
            "its workers leave; its training progress is lost, because it has no spec.checkpoint"
        }
    };
    cluster.delete(name, common.dry_run).await?;
    report(&job, *common, &format!("{name} is deleted: {rest}"))
}

/// The job; an error if it has ended.
async fn living(cluster: &Cluster, name: &str, what: &str) -> anyhow::Result<TrainingJob> {
    let job = cluster.wanted_job(name).await?;
    let ended = job
        .status
        .as_ref()
        .is_some_and(roundhouse_api::TrainingJobStatus::is_terminal);
    ensure!(
        !ended,
        "{name} has ended and cannot be {what}: run `kubectl roundhouse stop {name}` and submit it again"
    );
    Ok(job)
}

fn report(job: &TrainingJob, common: Common, sentence: &str) -> Outcome {
    let Common { dry_run, output } = common;
    out::print(job, output, |_| format!("{sentence}.{}", dry_run.suffix()))?;
    Ok(ExitCode::SUCCESS)
}
