//! Changes of the job's file while it runs: what `kubectl apply` or `kubectl scale` is for a cluster.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use roundhouse_api::TrainingJob;
use roundhouse_planner::validate;

use super::capacity;
use super::manifest::Manifest;
use crate::screen::Screen;

const INTERVAL: Duration = Duration::from_millis(100);

/// The file, and when it was last written.
#[derive(Debug)]
pub(crate) struct Edits {
    file: PathBuf,
    name: Option<String>,
    written_at: Option<SystemTime>,
    looked_at: Instant,
}

impl Edits {
    pub(crate) fn of(file: &Path, name: Option<&str>) -> Self {
        Self {
            file: file.to_owned(),
            name: name.map(str::to_owned),
            written_at: written_at(file),
            looked_at: Instant::now(),
        }
    }

    /// The job as it is wanted now, if that has changed. A file that cannot be used changes nothing.
    pub(crate) fn look(&mut self, current: &TrainingJob, screen: &Screen) -> Option<TrainingJob> {
        if self.looked_at.elapsed() < INTERVAL {
            return None;
        }
        self.looked_at = Instant::now();
        let written_at = written_at(&self.file);
        if written_at.is_none() || written_at == self.written_at {
            return None;
        }
        self.written_at = written_at;
        let wanted = Manifest::read(&self.file, self.name.as_deref())
            .and_then(|manifest| merge(current, manifest.job));
        match wanted {
            Ok(job) => (job.spec != current.spec).then_some(job),
            Err(error) => {
                screen.note(&format!("  the change is not used: {error:#}"));
                None
            }
        }
    }
}

fn written_at(file: &Path) -> Option<SystemTime> {
    std::fs::metadata(file).and_then(|it| it.modified()).ok()
}

/// The current job with the wanted spec, where it may change.
fn merge(current: &TrainingJob, wanted: TrainingJob) -> anyhow::Result<TrainingJob> {
    let (old, new) = (&current.spec, &wanted.spec);
    anyhow::ensure!(
        old.trainer == new.trainer
            && old.workers.template == new.workers.template
            && old.workers.procs_per_worker == new.workers.procs_per_worker,
        "trainer, workers.template and workers.procsPerWorker are immutable: run it anew"
    );
    let mut job = current.clone();
    job.spec = wanted.spec;
    job.metadata.generation = Some(job.metadata.generation.unwrap_or(1) + 1);
    capacity::check(&validate(&job)?)?;
    Ok(job)
}
