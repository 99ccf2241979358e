//! Where the page's facts come from: a cluster, or the directory of a run without one.

use std::path::{Path, PathBuf};

use anyhow::ensure;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use roundhouse_api::TrainingJob;
use serde_json::{Value, json};

use super::desk::{Job, LogOf, Trouble};
use super::document;
use crate::cluster::Cluster;
use crate::facts::Facts;
use crate::local::record::{self, Record};
use crate::logs::merge::merge;
use crate::logs::{Begin, Line, Source, Speaker};
use crate::plot::{Moment, history};

mod files;

use files::Files;

/// Lines of a log that are shown of each process.
const LINES: u32 = 400;
/// Lines that are read at most.
const MAX_LINES: u32 = 4_000;

/// Where facts come from.
pub(crate) enum Origin {
    /// An API server.
    Cluster {
        /// It, and the namespace.
        cluster: Box<Cluster>,
        /// Whether jobs of all namespaces are listed.
        everywhere: bool,
    },
    /// The directory of a run without a cluster.
    Directory(PathBuf),
}

impl Origin {
    /// A cluster; `everywhere`: with jobs of all namespaces.
    pub(crate) fn of_cluster(cluster: Cluster, everywhere: bool) -> Self {
        let cluster = Box::new(cluster);
        Self::Cluster {
            cluster,
            everywhere,
        }
    }

    /// The directory of a run.
    ///
    /// # Errors
    /// It has no record of one.
    pub(crate) fn of_directory(dir: &Path) -> anyhow::Result<Self> {
        Record::read(dir)?;
        Ok(Self::Directory(std::path::absolute(dir)?))
    }

    /// What stands behind the address of the page: nothing for the list of jobs, the place of a job in it otherwise.
    ///
    /// # Errors
    /// The origin cannot be read, or there is no such job.
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

    /// Whether there is a cluster, for which commands of the plugin are.
    pub(super) const fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster { .. })
    }

    /// What the page is about, in words.
    pub(super) fn title(&self) -> String {
        match self {
            Self::Cluster {
                everywhere: true, ..
            } => "all namespaces".to_owned(),
            Self::Cluster { cluster, .. } => format!("namespace {}", cluster.namespace()),
            Self::Directory(dir) => dir.display().to_string(),
        }
    }

    /// Something about the origin that a reader should know now.
    pub(super) fn note(&self, facts: &Facts) -> Option<String> {
        let Self::Directory(dir) = self else {
            return None;
        };
        let has_ended = facts.status().is_terminal();
        let is_left = !has_ended && record::runner(dir).is_none();
        is_left.then(|| {
            "The run has been stopped. Shown is what it wrote last; the same command continues it."
                .to_owned()
        })
    }

    pub(super) async fn jobs(&self) -> Result<Vec<TrainingJob>, Trouble> {
        Ok(match self {
            Self::Cluster {
                cluster,
                everywhere,
            } => cluster.jobs(*everywhere).await?,
            Self::Directory(dir) => vec![Record::read(dir)?.job],
        })
    }

    pub(super) async fn facts(&self, job: &Job) -> Result<Facts, Trouble> {
        let Job { namespace, name } = job;
        let missing =
            || Trouble::Missing(format!("There is no TrainingJob {name} in {namespace}."));
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
                    told,
                } = Record::read(dir)?;
                if job.name_any() != *name || job.namespace().as_deref() != Some(namespace) {
                    return Err(missing());
                }
                Ok(Facts {
                    job,
                    pods,
                    events,
                    told,
                    now: Timestamp::now(),
                })
            }
        }
    }

    /// Adds to `moments` what the job has told since the newest of them, or since its begin if there are none.
    /// `generation`: that of the last call; a later one may have rank 0 on another pod.
    pub(super) async fn extend(
        &self,
        moments: &mut Vec<Moment>,
        facts: &Facts,
        generation: u64,
    ) -> Result<(), Trouble> {
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
        // Rank 0 is on one pod: the others need not be asked again.
        let workers = facts.workers();
        let first = workers.iter().find(|worker| {
            let place = worker.place_in(generation);
            place.is_some_and(|place| place.node_rank == 0)
        });
        let Some(first) = first else { return Ok(()) };
        let pods = only(&facts.pods, &first.pod);
        Ok(history::extend(moments, &cluster.logs_of(&pods)).await?)
    }

    /// The last lines of a log, as a document.
    pub(super) async fn log(&self, facts: &Facts, log: &LogOf) -> Result<Value, Trouble> {
        let pods = only(&facts.pods, &log.pod);
        if pods.is_empty() {
            return Err(Trouble::Missing(format!("There is no pod {}.", log.pod)));
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

impl std::fmt::Debug for Origin {
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

/// The last lines of one process and its agent.
async fn lines(source: &impl Source, procs: u32, log: &LogOf) -> anyhow::Result<Value> {
    let procs = procs.max(1);
    let begin = Begin {
        since: None,
        tail: Some(LINES.saturating_mul(procs).min(MAX_LINES).into()),
    };
    // A rank of any generation tells which process of its worker it is.
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
