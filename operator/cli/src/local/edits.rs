//! Changes of the job's file while it runs: what `kubectl apply` or `kubectl scale` is for a cluster.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use roundhouse_api::TrainingJob;
use roundhouse_planner::validate;

use super::capacity;
use super::manifest::Manifest;
use super::{Options, setting};
use crate::screen::Screen;

const INTERVAL: Duration = Duration::from_millis(100);

/// The file, and when it was last written.
#[derive(Debug)]
pub(crate) struct Edits {
    options: Options,
    written_at: Option<SystemTime>,
    looked_at: Instant,
}

impl Edits {
    pub(crate) fn of(options: &Options) -> Self {
        Self {
            options: options.clone(),
            written_at: written_at(&options.file),
            looked_at: Instant::now(),
        }
    }

    /// The job as it is wanted now, if that has changed. A file that cannot be used changes nothing.
    pub(crate) fn look(&mut self, current: &TrainingJob, screen: &Screen) -> Option<TrainingJob> {
        if self.looked_at.elapsed() < INTERVAL {
            return None;
        }
        self.looked_at = Instant::now();
        let written_at = written_at(&self.options.file);
        if written_at.is_none() || written_at == self.written_at {
            return None;
        }
        self.written_at = written_at;
        match self.wanted(current) {
            Ok(job) => (job.spec != current.spec).then_some(job),
            Err(error) => {
                screen.note(&format!("  the change is not used: {error:#}"));
                None
            }
        }
    }

    fn wanted(&self, current: &TrainingJob) -> anyhow::Result<TrainingJob> {
        let Options { file, name, .. } = &self.options;
        let mut wanted = Manifest::read(file, name.as_deref())?.job;
        setting::keep_state(&mut wanted, &self.options);
        merge(current, wanted)
    }
}

fn written_at(file: &Path) -> Option<SystemTime> {
    std::fs::metadata(file).and_then(|it| it.modified()).ok()
}

/// The current job with the wanted spec, where it may change.
fn merge(current: &TrainingJob, wanted: TrainingJob) -> anyhow::Result<TrainingJob> {
    let (old, new) = (&current.spec, &wanted.spec);
    let (elastic, was) = (&new.elastic, &old.elastic);
    for (is_same, field) in [
        (old.trainer == new.trainer, "trainer"),
        (old.checkpoint == new.checkpoint, "checkpoint"),
        (
            old.workers.template == new.workers.template,
            "workers.template",
        ),
        (
            old.workers.procs_per_worker == new.workers.procs_per_worker,
            "workers.procsPerWorker",
        ),
        (was.mode == elastic.mode, "elastic.mode"),
        (was.on_scale == elastic.on_scale, "elastic.onScale"),
        (was.scale_batch == elastic.scale_batch, "elastic.scaleBatch"),
    ] {
        anyhow::ensure!(is_same, "spec.{field} is immutable: run it anew");
    }
    anyhow::ensure!(
        old.suspend || old.failure_policy.rules == new.failure_policy.rules,
        "spec.failurePolicy.rules is immutable while the job is not suspended: set suspend: true first"
    );
    let mut job = current.clone();
    job.spec = wanted.spec;
    job.metadata.generation = Some(job.metadata.generation.unwrap_or(1) + 1);
    capacity::check(&validate(&job)?)?;
    Ok(job)
}
