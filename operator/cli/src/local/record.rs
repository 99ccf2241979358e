//! What a run tells of itself in its directory, for `kubectl roundhouse ui --local DIR`: the objects that a cluster would
//! have of the job, and its progress over time.

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

use crate::facts::Told;
use crate::plot::{self, Moment};

pub(super) mod diary;
mod object;

/// The objects, in the run's directory.
const RECORD: &str = "record.json";
/// A line for each sample of progress, in the run's directory.
const PROGRESS: &str = "progress.jsonl";

/// A run as a cluster would tell of it.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    /// The job with its status.
    pub(crate) job: TrainingJob,
    /// Its workers.
    pub(crate) pods: Vec<v1::Pod>,
    /// Events about it, oldest first.
    pub(crate) events: Vec<v1::Event>,
    /// What the agents would answer, by the name of their pod.
    pub(crate) told: BTreeMap<String, Told>,
}

impl Record {
    /// As the run wrote it last.
    ///
    /// # Errors
    /// There is none in the directory, or it cannot be read.
    pub(crate) fn read(dir: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(dir.join(RECORD)).with_context(|| {
            let what = if dir.is_dir() {
                "has no record of a run"
            } else {
                "is not a directory"
            };
            format!(
                "{} {what}: give that of `kubectl roundhouse run --local --dir`",
                dir.display()
            )
        })?;
        serde_json::from_str(&text).with_context(|| dir.join(RECORD).display().to_string())
    }

    /// Writes it, so that a reader sees the old one or this one, never half of it.
    pub(crate) fn write(&self, dir: &Path) -> io::Result<()> {
        let partial = dir.join(RECORD).with_extension("partial");
        std::fs::write(&partial, serde_json::to_vec(self)?)?;
        std::fs::rename(partial, dir.join(RECORD))
    }
}

/// Progress at a moment.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Sample {
    /// When.
    pub(crate) at: Timestamp,
    /// What rank 0 told.
    #[serde(flatten)]
    pub(crate) progress: Progress,
}

impl Sample {
    /// Adds it to the file of a directory that was opened for appending.
    fn append(&self, mut file: &std::fs::File) -> io::Result<()> {
        let mut line = serde_json::to_vec(self)?;
        line.push(b'\n');
        file.write_all(&line)
    }
}

/// What the run in a directory has told so far; nothing if it has told nothing. A line that is not whole yet is left out.
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
            let size = progress.world_size;
            let told = plot::Told::World { generation, size };
            moments.push(Moment { at, told });
        }
        let told = plot::Told::Step {
            step: progress.step as f64,
            loss: progress.loss,
            speed: progress.samples_per_second,
            is_in_tokens: false,
        };
        moments.push(Moment { at, told });
    }
    moments
}

/// The process that runs in a directory, if one does.
pub(crate) fn runner(dir: &Path) -> Option<u32> {
    let pid = std::fs::read_to_string(dir.join(super::home::LOCK)).ok()?;
    let pid = pid.trim().parse::<i32>().ok()?;
    let told = test_kill_process(Pid::from_raw(pid)?);
    // One of another user may not be signalled, and lives.
    (told != Err(Errno::SRCH)).then_some(pid.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{job, progress};

    #[test]
    fn a_record_is_read_as_it_was_written_and_a_missing_one_says_what_to_give() {
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
        let record = job().trains(2).told(0, progress(), "").record();
        record.write(dir.path()).unwrap();
        let read = Record::read(dir.path()).unwrap();
        assert_eq!(
            serde_json::to_value(&read).unwrap(),
            serde_json::to_value(&record).unwrap()
        );
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn samples_become_moments_and_a_new_generation_is_one_of_its_own() {
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
        let told: Vec<_> = moments(dir.path()).iter().map(|it| it.told).collect();
        let world = |generation| plot::Told::World {
            generation,
            size: 2,
        };
        let step = |step| plot::Told::Step {
            step,
            loss: Some(0.25),
            speed: 100.0,
            is_in_tokens: false,
        };
        assert_eq!(told, [world(1), step(5.0), step(6.0), world(2), step(7.0)]);
    }

    #[test]
    fn a_directory_has_a_runner_while_its_process_lives() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(runner(dir.path()), None);
        let lock = dir.path().join(super::super::home::LOCK);
        std::fs::write(&lock, format!("{}\n", std::process::id())).unwrap();
        assert_eq!(runner(dir.path()), Some(std::process::id()));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        std::fs::write(&lock, child.id().to_string()).unwrap();
        assert_eq!(runner(dir.path()), None);
    }
}
