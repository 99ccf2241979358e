//! The files of one process in the run directory. Each is written by rename, so that a reader never
//! sees half of one. A failed write is reported once and never ends training.

use std::path::{Path, PathBuf};
use std::time::Instant;

use roundhouse_contract::{RankStatus, TerminationMessage, paths};

use super::metrics::Metrics;
use super::say_error;
use super::status_file::StatusFile;

/// Paths of one process' files.
#[derive(Debug)]
pub struct RunFiles {
    status: StatusFile,
    metrics: PathBuf,
    failure: PathBuf,
    has_complained: bool,
}

impl RunFiles {
    /// The files of the process with this local rank.
    #[must_use]
    pub fn new(run_dir: &Path, local_rank: u32) -> Self {
        Self {
            status: StatusFile::new(paths::rank_status(run_dir, local_rank)),
            metrics: paths::rank_metrics(run_dir, local_rank),
            failure: paths::rank_failure(run_dir, local_rank),
            has_complained: false,
        }
    }

    pub fn write_status(&mut self, status: &RankStatus) {
        let result = self.status.write(status);
        self.complain_once(result);
    }

    /// Writes the status at `due`, unless a newer one is written before.
    pub fn write_status_at(&mut self, due: Instant, status: RankStatus) {
        self.status.write_at(due, status);
    }

    /// Reads the last status; `None` before the first write.
    #[must_use]
    pub fn read_status(&self) -> Option<RankStatus> {
        let text = std::fs::read_to_string(self.status.path()).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Writes the metrics as Prometheus text.
    pub fn write_metrics(&mut self, metrics: &Metrics) {
        let result = metrics
            .to_text()
            .map_err(std::io::Error::other)
            .and_then(|text| replace(&self.metrics, &text));
        self.complain_once(result);
    }

    /// Writes the reason why the process ends.
    pub fn write_failure(&self, words: &TerminationMessage) {
        let result = words
            .to_json()
            .map_err(std::io::Error::from)
            .and_then(|text| replace(&self.failure, &text));
        if let Err(error) = result {
            say_error(&format!("{}: {error}", self.failure.display()));
        }
    }

    fn complain_once(&mut self, result: std::io::Result<()>) {
        if let Err(error) = result
            && !self.has_complained
        {
            self.has_complained = true;
            say_error(&format!("run directory: {error}"));
        }
    }
}

pub(super) fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let named = |error: std::io::Error| {
        std::io::Error::new(error.kind(), format!("{}: {error}", path.display()))
    };
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    std::fs::write(&partial, text).map_err(named)?;
    std::fs::rename(&partial, path).map_err(named)
}

#[cfg(test)]
pub(super) mod tests {
    use roundhouse_contract::Phase;

    use super::*;

    /// The status of a process with this number of steps.
    pub(crate) fn status(step: u64) -> RankStatus {
        RankStatus {
            phase: Phase::Training,
            rank: Some(0),
            generation: 1,
            step,
            forming: 0,
            volume_moves: 0,
            patience_seconds: 0,
            progress: None,
        }
    }

    #[test]
    fn the_last_status_is_the_one_that_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let mut files = RunFiles::new(directory.path(), 2);
        files.write_status(&status(1));
        files.write_status(&status(2));
        let text = std::fs::read_to_string(directory.path().join("rank-2.json")).unwrap();
        assert_eq!(
            serde_json::from_str::<RankStatus>(&text).unwrap(),
            status(2)
        );
        assert_eq!(files.read_status(), Some(status(2)));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_directory_that_is_gone_does_not_end_training() {
        let mut files = RunFiles::new(Path::new("/nonexistent"), 0);
        files.write_status(&status(1));
        assert!(files.has_complained);
    }
}
