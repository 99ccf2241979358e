//! Reads what the page shows: from a cluster, or from the directory of a run without a cluster.

use std::path::{Path, PathBuf};

use anyhow::ensure;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use roundhouse_api::TrainingJob;
use serde_json::{Value, json};

use super::document;
use super::model::{JobName, LogRequest, QueryError};
use crate::cluster::Cluster;
use crate::facts::Facts;
use crate::local::record::{self, Record};
use crate::logs::merge::merge;
use crate::logs::{Begin, Line, Source, Speaker};
use crate::plot::{Moment, history};

mod files;

use files::Files;

/// Lines of the log that the page shows for one process.
const LINES: u32 = 400;
/// Most lines to read from the log of one pod.
const MAX_LINES: u32 = 4_000;

pub(crate) enum DataSource {
    Cluster {
        cluster: Box<Cluster>,
        /// Whether to list the jobs of all namespaces.
        everywhere: bool,
    },
    /// The directory of a run without a cluster.
    Directory(PathBuf),
}

impl DataSource {
    pub(crate) fn of_cluster(cluster: Cluster, everywhere: bool) -> Self {
        let cluster = Box::new(cluster);
        Self::Cluster {
            cluster,
            everywhere,
        }
    }

    /// The directory of a run without a cluster.
    ///
    /// # Errors
    /// The directory has no record of a run.
    pub(crate) fn of_directory(dir: &Path) -> anyhow::Result<Self> {
        Record::read(dir)?;
        Ok(Self::Directory(std::path::absolute(dir)?))
    }

    /// The fragment of the page's address: empty for the list of jobs, `#/NAMESPACE/NAME` for a
    /// job.
    ///
    /// # Errors
    /// The source cannot be read, or there is no such job.
    pub(crate) async fn first_page(&self, name: Option<&str>) -> anyhow::Result<String> {
        let place = |job: &TrainingJob| {
            let namespace = job.namespace().unwrap_or_default();
            format!("#/{namespace}/{}", job.name_any())
        };
        match (self, name) {
            (Self::Cluster { cluster, .. }, Some(name)) => {
                Ok(place(&cluster.wanted_job(name).await?))
            }
            (
                Self::Cluster {
                    cluster,
                    everywhere,
                },
                None,
            ) => {
                cluster.jobs(*everywhere).await?;
                Ok(String::new())
            }
            (Self::Directory(dir), _) => {
                ensure!(dir.is_dir(), "{} is not a directory", dir.display());
                Ok(place(&Record::read(dir)?.job))
            }
        }
    }

    /// Whether there is a cluster, so that the page may suggest commands for it.
    pub(super) const fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster { .. })
    }

    /// Title of the page: the namespace, or the directory of the run.
    pub(super) fn title(&self) -> String {
        match self {
            Self::Cluster {
                everywhere: true, ..
            } => "all namespaces".to_owned(),
            Self::Cluster { cluster, .. } => format!("namespace {}", cluster.namespace()),
            Self::Directory(dir) => dir.display().to_string(),
        }
    }

    /// A warning about the source: the run in the directory has been stopped.
    pub(super) fn note(&self, facts: &Facts) -> Option<String> {
        let Self::Directory(dir) = self else {
            return None;
        };
        let has_ended = facts.status().is_terminal();
        let is_left = !has_ended && record::runner(dir).is_none();
        is_left.then(|| {
            "The run was stopped. This page shows its last state. To continue it, run the same command again."
                .to_owned()
        })
    }

    pub(super) async fn jobs(&self) -> Result<Vec<TrainingJob>, QueryError> {
        Ok(match self {
            Self::Cluster {
                cluster,
                everywhere,
            } => cluster.jobs(*everywhere).await?,
            Self::Directory(dir) => vec![Record::read(dir)?.job],
        })
    }

    pub(super) async fn facts(&self, job: &JobName) -> Result<Facts, QueryError> {
        let JobName { namespace, name } = job;
        let missing =
            || QueryError::NotFound(format!("There is no TrainingJob {name} in {namespace}."));
        match self {
            Self::Cluster { cluster, .. } => {
                let cluster = cluster.in_namespace(namespace);
                let found = cluster.job(name).await?.ok_or_else(missing)?;
                Ok(Box::pin(cluster.facts_of(found)).await?)
            }
            Self::Directory(dir) => {
                let Record {
                    job,
                    pods,
                    events,
                    reports,
                } = Record::read(dir)?;
                if job.name_any() != *name || job.namespace().as_deref() != Some(namespace) {
                    return Err(missing());
                }
                Ok(Facts {
                    job,
                    pods,
                    events,
                    reports,
                    now: Timestamp::now(),
                })
            }
        }
    }

    /// Appends to `moments` what rank 0 has reported after the newest of them, or everything if
    /// there are none. `generation` is the generation at the last call: in a later generation,
    /// rank 0 may be on another pod.
    pub(super) async fn extend(
        &self,
        moments: &mut Vec<Moment>,
        facts: &Facts,
        generation: u64,
    ) -> Result<(), QueryError> {
        let cluster = match self {
            Self::Cluster { cluster, .. } => cluster.in_namespace(&namespace(facts)),
            Self::Directory(dir) => {
                *moments = record::moments(dir);
                return Ok(());
            }
        };
        if moments.is_empty() {
            *moments = history::read(&cluster.logs_of(&facts.pods), |_| {}).await?;
            return Ok(());
        }
        if generation != facts.generation() {
            return Ok(history::extend(moments, &cluster.logs_of(&facts.pods)).await?);
        }
        // In the same generation rank 0 is still on the same pod, so the other logs have nothing
        // new.
        let workers = facts.workers();
        let first = workers.iter().find(|worker| {
            let place = worker.place_in(generation);
            place.is_some_and(|place| place.node_rank == 0)
        });
        let Some(first) = first else { return Ok(()) };
        let pods = only(&facts.pods, &first.pod);
        Ok(history::extend(moments, &cluster.logs_of(&pods)).await?)
    }

    /// The last lines of a log, as a JSON document.
    pub(super) async fn log(&self, facts: &Facts, log: &LogRequest) -> Result<Value, QueryError> {
        let pods = only(&facts.pods, &log.pod);
        if pods.is_empty() {
            return Err(QueryError::NotFound(format!(
                "There is no pod {}.",
                log.pod
            )));
        }
        let lines = match self {
            Self::Cluster { cluster, .. } => {
                let cluster = cluster.in_namespace(&namespace(facts));
                lines(&cluster.logs_of(&pods), facts.procs(), log).await?
            }
            Self::Directory(dir) => lines(&Files::new(dir, &pods), facts.procs(), log).await?,
        };
        Ok(lines)
    }
}

impl std::fmt::Debug for DataSource {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.title())
    }
}

fn namespace(facts: &Facts) -> String {
    facts.job.namespace().unwrap_or_default()
}

fn only(pods: &[Pod], name: &str) -> Vec<Pod> {
    let found = pods.iter().filter(|pod| pod.name_any() == name);
    found.cloned().collect()
}

/// The last lines of one process and of its agent.
async fn lines(source: &impl Source, procs: u32, log: &LogRequest) -> anyhow::Result<Value> {
    let procs = procs.max(1);
    let begin = Begin {
        since: None,
        tail: Some(LINES.saturating_mul(procs).min(MAX_LINES).into()),
    };
    // The local rank follows from the rank in every generation.
    let is_wanted = |speaker| match speaker {
        Speaker::Rank(rank) => rank % procs == log.process,
        Speaker::Process(_, local) => local == log.process,
        Speaker::Agent(_) => true,
    };
    let (mut lines, mut notes) = (Vec::new(), Vec::new());
    let show = |line: &Line| {
        if is_wanted(line.speaker) {
            lines.push(document::line(line));
        }
        Ok(())
    };
    let note = |text: &str| notes.push(text.to_owned());
    merge(source, begin, log.previous, show, note).await?;
    Ok(json!({"pod": log.pod, "lines": lines, "notes": notes}))
}
