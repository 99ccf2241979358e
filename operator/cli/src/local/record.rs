//! The record of a run in its directory, for `kubectl roundhouse ui --local DIR`: the objects that
//! the API server would have, and the progress over time.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;

use anyhow::Context;
use jiff::Timestamp;
use k8s_openapi::api::core::v1;
use roundhouse_api::TrainingJob;
use roundhouse_contract::Progress;
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};

use crate::facts::AgentReport;
use crate::plot::{self, Moment};

mod objects;
pub(super) mod recorder;

/// File with the objects.
const RECORD: &str = "record.json";
/// File with one line for each sample of progress.
const PROGRESS: &str = "progress.jsonl";

/// A run in the form of Kubernetes objects.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    /// The job with its status.
    pub(crate) job: TrainingJob,
    /// The workers as pods.
    pub(crate) pods: Vec<v1::Pod>,
    /// Events about the job, oldest first.
    pub(crate) events: Vec<v1::Event>,
    /// The agents' reports, by pod name.
    pub(crate) reports: BTreeMap<String, AgentReport>,
}

impl Record {
    /// Reads the record that the run wrote last.
    ///
    /// # Errors
    /// The directory has no record, or the record cannot be read.
    pub(crate) fn read(dir: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(dir.join(RECORD)).with_context(|| {
            let what = if dir.is_dir() {
                "has no record of a run"
            } else {
                "is not a directory"
            };
            format!(
                "{} {what}: give the directory of `kubectl roundhouse run --local --dir`",
                dir.display()
            )
        })?;
        serde_json::from_str(&text).with_context(|| dir.join(RECORD).display().to_string())
    }

    /// Replaces the record atomically: a reader sees the old one or the new one.
    pub(crate) fn write(&self, dir: &Path) -> io::Result<()> {
        let partial = dir.join(RECORD).with_extension("partial");
        std::fs::write(&partial, serde_json::to_vec(self)?)?;
        std::fs::rename(partial, dir.join(RECORD))
    }
}

/// The progress of the job at one time.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Sample {
    pub(crate) at: Timestamp,
    /// The progress that rank 0 reported.
    #[serde(flatten)]
    pub(crate) progress: Progress,
}

impl Sample {
    /// Appends the sample as one line to an open file.
    fn append(&self, mut file: &std::fs::File) -> io::Result<()> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        file.write_all(&line)
    }
}

/// The progress that a run has recorded so far. An incomplete last line is skipped.
pub(crate) fn moments(dir: &Path) -> Vec<Moment> {
    let Ok(file) = std::fs::File::open(dir.join(PROGRESS)) else {
        return Vec::new();
    };
    let lines = BufReader::new(file).lines().map_while(Result::ok);
    let samples = lines.filter_map(|line| serde_json::from_str::<Sample>(&line).ok());
    let (mut moments, mut generation) = (Vec::new(), 0);
    for Sample { at, progress } in samples {
        let at = Some(at);
        if generation != progress.generation {
            generation = progress.generation;
            let reported = plot::Reported::Generation {
                number: generation,
                world_size: progress.world_size,
            };
            moments.push(Moment { at, reported });
        }
        let reported = plot::Reported::Step {
            step: progress.step as f64,
            loss: progress.loss,
            speed: progress.samples_per_second,
            is_in_tokens: false,
        };
        moments.push(Moment { at, reported });
    }
    moments
}

/// The pid of the run that uses a directory, if one does.
pub(crate) fn runner(dir: &Path) -> Option<u32> {
    let pid = std::fs::read_to_string(dir.join(super::run_directory::LOCK)).ok()?;
    let pid = pid.trim().parse::<i32>().ok()?;
    let exists = test_kill_process(Pid::from_raw(pid)?);
    // Another error than ESRCH means that the process exists but belongs to another user.
    (exists != Err(Errno::SRCH)).then_some(pid.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{job, progress};

    #[test]
    fn record_reads_back_and_a_missing_one_gives_advice() {
        let dir = tempfile::tempdir().unwrap();
        let error = Record::read(dir.path()).unwrap_err().to_string();
        assert!(
            error.contains("no record") && error.contains("--dir"),
            "{error}"
        );
        let missing = Record::read(&dir.path().join("missing")).unwrap_err();
        assert!(
            missing.to_string().contains("is not a directory"),
            "{missing}"
        );
        let record = job().trains(2).reports(0, progress(), "").record();
        record.write(dir.path()).unwrap();
        let read = Record::read(dir.path()).unwrap();
        assert_eq!(
            serde_json::to_value(&read).unwrap(),
            serde_json::to_value(&record).unwrap()
        );
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn samples_and_new_generations_become_moments() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(moments(dir.path()), []);
        let file = std::fs::File::create(dir.path().join(PROGRESS)).unwrap();
        for (second, generation, step) in [(1, 1, 5), (2, 1, 6), (3, 2, 7)] {
            let progress = Progress {
                generation,
                step,
                ..progress()
            };
            let at = Timestamp::from_second(second).unwrap();
            Sample { at, progress }.append(&file).unwrap();
        }
        (&file).write_all(b"{\"at\":").unwrap();
        let reported: Vec<_> = moments(dir.path()).iter().map(|it| it.reported).collect();
        let begins = |number| plot::Reported::Generation {
            number,
            world_size: 2,
        };
        let step = |step| plot::Reported::Step {
            step,
            loss: Some(0.25),
            speed: 100.0,
            is_in_tokens: false,
        };
        assert_eq!(
            reported,
            [begins(1), step(5.0), step(6.0), begins(2), step(7.0)]
        );
    }

    #[test]
    fn directory_has_a_runner_while_its_process_lives() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(runner(dir.path()), None);
        let lock = dir.path().join(super::super::run_directory::LOCK);
        std::fs::write(&lock, format!("{}\n", std::process::id())).unwrap();
        assert_eq!(runner(dir.path()), Some(std::process::id()));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        std::fs::write(&lock, child.id().to_string()).unwrap();
        assert_eq!(runner(dir.path()), None);
    }
}
