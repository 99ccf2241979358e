//! Writes the record of a run while it runs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use roundhouse_api::TrainingJob;
use roundhouse_contract::Progress;

use super::{PROGRESS, Record, Sample, objects};
use crate::facts::AgentReport;
use crate::local::executor::Executor;

/// Time between two records while the run continues.
const INTERVAL: Duration = Duration::from_secs(1);
/// Shortest time between two samples. Later it is a thousandth of the run's age, so that the file
/// of a run of several days stays small.
const FIRST_SAMPLES: Duration = Duration::from_millis(250);
/// Number of events that the record keeps, the newest ones.
const MAX_EVENTS: usize = 200;

/// Collects what a record contains and writes it.
#[derive(Debug)]
pub(crate) struct Recorder {
    dir: PathBuf,
    samples: File,
    begun: Instant,
    begun_at: Timestamp,
    events: Vec<Event>,
    /// The last known workers and their reports; the record of an ended run shows them.
    last: (Vec<Pod>, BTreeMap<String, AgentReport>),
    written: Option<Instant>,
    /// Time, generation and step of the last sample.
    sampled: Option<(Instant, u64, u64)>,
    has_failed: bool,
}

impl Recorder {
    /// Begins a new record in a run's directory.
    ///
    /// # Errors
    /// The file of samples cannot be created.
    pub(crate) fn begin(dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join(PROGRESS);
        let samples = File::create(&path).with_context(|| path.display().to_string())?;
        Ok(Self {
            dir: dir.to_owned(),
            samples,
            begun: Instant::now(),
            begun_at: Timestamp::now(),
            events: Vec::new(),
            last: Default::default(),
            written: None,
            sampled: None,
            has_failed: false,
        })
    }

    /// Adds an event about the job.
    pub(crate) fn note(&mut self, job: &TrainingJob, event: &roundhouse_planner::Event) {
        if self.events.len() == MAX_EVENTS {
            self.events.remove(0);
        }
        self.events
            .push(objects::event(job, event, Timestamp::now()));
    }

    /// Writes the record if one is due, or if the run ends. Returns the first error as a message
    /// instead of failing, because a full disk must not end the run.
    pub(crate) fn write(
        &mut self,
        job: &TrainingJob,
        executor: &Executor,
        progress: Option<&Progress>,
        is_last: bool,
    ) -> Option<String> {
        let now = Instant::now();
        let sampled = progress.map_or(Ok(()), |progress| self.sample(progress, now, is_last));
        let is_due = self.written.is_none_or(|at| now - at >= INTERVAL);
        let written = if is_due || is_last {
            self.written = Some(now);
            self.record(job, executor).write(&self.dir)
        } else {
            Ok(())
        };
        let error = sampled.and(written).err()?;
        let is_first = !std::mem::replace(&mut self.has_failed, true);
        is_first.then(|| format!("cannot write the record for `ui --local`: {error}"))
    }

    fn record(&mut self, job: &TrainingJob, executor: &Executor) -> Record {
        let mut job = job.clone();
        job.metadata.creation_timestamp = Some(Time(self.begun_at));
        if executor.num_workers() > 0 {
            let namespace = job.namespace().unwrap_or_default();
            let workers = executor.observe(&job.status.clone().unwrap_or_default());
            let pods = workers.pods.iter().map(|it| objects::pod(it, &namespace));
            self.last = (pods.collect(), executor.agent_reports());
        }
        let (pods, reports) = self.last.clone();
        Record {
            job,
            pods,
            events: self.events.clone(),
            reports,
        }
    }

    /// Appends a sample if there is a new step and the last sample is old enough.
    fn sample(&mut self, progress: &Progress, now: Instant, is_last: bool) -> io::Result<()> {
        let Progress {
            generation, step, ..
        } = *progress;
        let pause = FIRST_SAMPLES.max((now - self.begun) / 1_000);
        let is_wanted = match self.sampled {
            None => true,
            Some((_, last_generation, last_step))
                if (last_generation, last_step) == (generation, step) =>
            {
                false
            }
            Some((at, last_generation, _)) => {
                is_last || last_generation != generation || now - at >= pause
            }
        };
        if !is_wanted {
            return Ok(());
        }
        self.sampled = Some((now, generation, step));
        let sample = Sample {
            at: Timestamp::now(),
            progress: progress.clone(),
        };
        sample.append(&self.samples)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::record::moments;
    use crate::testing::progress;

    #[test]
    fn longer_runs_record_fewer_samples() {
        let dir = tempfile::tempdir().unwrap();
        let mut recorder = Recorder::begin(dir.path()).unwrap();
        let begun = recorder.begun;
        let mut at = |millis: u64, step: u64, generation: u64, is_last: bool| {
            let progress = Progress {
                step,
                generation,
                ..progress()
            };
            let now = begun + Duration::from_millis(millis);
            recorder.sample(&progress, now, is_last).unwrap();
            let points = moments(dir.path());
            let steps = points
                .iter()
                .filter(|it| matches!(it.reported, crate::plot::Reported::Step { .. }));
            steps.count()
        };
        assert_eq!(at(0, 1, 1, false), 1);
        assert_eq!(at(100, 2, 1, false), 1, "too soon");
        assert_eq!(at(250, 3, 1, false), 2);
        assert_eq!(at(900, 3, 1, false), 2, "no new step");
        assert_eq!(at(1_000, 4, 2, false), 3);
        // After an hour one sample in 3.6 s is due. A new generation and the end add a sample at
        // once.
        assert_eq!(at(3_600_000, 5, 2, false), 4);
        assert_eq!(at(3_602_000, 6, 2, false), 4);
        assert_eq!(at(3_602_000, 6, 3, false), 5);
        assert_eq!(at(3_602_100, 7, 3, true), 6);
    }
}
