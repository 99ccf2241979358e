//! Keeps the record of a run up to date while it runs.

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

use super::{PROGRESS, Record, Sample, object};
use crate::facts::Told;
use crate::local::executor::Executor;

/// Between two records while the run continues.
const INTERVAL: Duration = Duration::from_secs(1);
/// Between two samples at the begin of a run; later it is a thousandth of the time that the run has taken, so that the
/// file of a run of days stays small.
const FIRST_SAMPLES: Duration = Duration::from_millis(250);
/// Events that are kept, the newest of them.
const MAX_EVENTS: usize = 200;

/// What is known of a run besides what its job and workers tell.
#[derive(Debug)]
pub(crate) struct Diary {
    dir: PathBuf,
    samples: File,
    begun: Instant,
    begun_at: Timestamp,
    events: Vec<Event>,
    /// Workers and what they told, as long as there were any: what is read of a run that has ended is about them.
    last: (Vec<Pod>, BTreeMap<String, Told>),
    written: Option<Instant>,
    /// When the last sample was taken, and its generation and step.
    sampled: Option<(Instant, u64, u64)>,
    has_failed: bool,
}

impl Diary {
    /// Begins a new record in a run's directory.
    ///
    /// # Errors
    /// The file of samples cannot be made.
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

    /// Notes an event about the job.
    pub(crate) fn note(&mut self, job: &TrainingJob, event: &roundhouse_planner::Event) {
        if self.events.len() == MAX_EVENTS {
            self.events.remove(0);
        }
        self.events
            .push(object::event(job, event, Timestamp::now()));
    }

    /// Writes the record if it is time to, or in any case if the run ends. Says once that it cannot: a full disk is no
    /// reason to end a run.
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
        is_first.then(|| format!("the record for `ui --local` cannot be written: {error}"))
    }

    fn record(&mut self, job: &TrainingJob, executor: &Executor) -> Record {
        let mut job = job.clone();
        job.metadata.creation_timestamp = Some(Time(self.begun_at));
        if executor.num_workers() > 0 {
            let namespace = job.namespace().unwrap_or_default();
            let workers = executor.observe(&job.status.clone().unwrap_or_default());
            let pods = workers.pods.iter().map(|it| object::pod(it, &namespace));
            self.last = (pods.collect(), executor.told());
        }
        let (pods, told) = self.last.clone();
        Record {
            job,
            pods,
            events: self.events.clone(),
            told,
        }
    }

    /// Adds a sample if there is a new step, and the last one is long enough ago.
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
    fn samples_are_taken_less_often_the_longer_a_run_takes() {
        let dir = tempfile::tempdir().unwrap();
        let mut diary = Diary::begin(dir.path()).unwrap();
        let begun = diary.begun;
        let mut at = |millis: u64, step: u64, generation: u64, is_last: bool| {
            let progress = Progress {
                step,
                generation,
                ..progress()
            };
            let now = begun + Duration::from_millis(millis);
            diary.sample(&progress, now, is_last).unwrap();
            let told = moments(dir.path());
            let steps = told
                .iter()
                .filter(|it| matches!(it.told, crate::plot::Told::Step { .. }));
            steps.count()
        };
        assert_eq!(at(0, 1, 1, false), 1);
        assert_eq!(at(100, 2, 1, false), 1, "too soon");
        assert_eq!(at(250, 3, 1, false), 2);
        assert_eq!(at(900, 3, 1, false), 2, "no new step");
        assert_eq!(at(1_000, 4, 2, false), 3);
        // After an hour it is one in 3.6 s, but for the begin of a generation and the end.
        assert_eq!(at(3_600_000, 5, 2, false), 4);
        assert_eq!(at(3_602_000, 6, 2, false), 4);
        assert_eq!(at(3_602_000, 6, 3, false), 5);
        assert_eq!(at(3_602_100, 7, 3, true), 6);
    }
}
