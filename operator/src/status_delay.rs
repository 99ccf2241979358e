//! Counts and words of a status change in bursts, while workers become ready one after the other:
//! those of one moment go in one write. What decides something is written at once.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use roundhouse_api::TrainingJobStatus;

use crate::cache::Job;

/// How long counts and words may lag.
const LAG: Duration = Duration::from_secs(2);
/// A job that has not come back by then is gone.
const FORGOTTEN: Duration = Duration::from_mins(1);

/// Since when each job's counts and words differ from what is stored.
#[derive(Debug, Default)]
pub struct StatusDelay(Mutex<HashMap<Job, Instant>>);

impl StatusDelay {
    /// How long to wait before `after` is written; `None`: now.
    pub fn wait(
        &self,
        job: &Job,
        before: &TrainingJobStatus,
        after: &TrainingJobStatus,
    ) -> Option<Duration> {
        let mut since = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if decisive(before) != decisive(after) {
            since.remove(job);
            return None;
        }
        since.retain(|_, since| since.elapsed() < FORGOTTEN);
        let begun = since.entry(job.clone()).or_insert_with(Instant::now);
        let left = LAG.saturating_sub(begun.elapsed());
        if left.is_zero() {
            since.remove(job);
            return None;
        }
        Some(left)
    }
}

/// The status without what only describes.
fn decisive(status: &TrainingJobStatus) -> TrainingJobStatus {
    let mut status = status.clone();
    status.workers = None;
    status.replicas = 0;
    for condition in &mut status.conditions {
        condition.message.clear();
    }
    status
}

#[cfg(test)]
mod tests {
    use roundhouse_api::WorkersStatus;

    use super::*;

    #[test]
    fn counts_wait_and_decisions_do_not() {
        let (settling, job) = (StatusDelay::default(), ("ns".to_owned(), "uid".to_owned()));
        let before = TrainingJobStatus::default();
        let mut counted = before.clone();
        counted.workers = Some(WorkersStatus {
            ready: 1,
            ..WorkersStatus::default()
        });
        assert!(settling.wait(&job, &before, &counted).is_some());
        let mut decided = counted.clone();
        decided.incidents.total = 1;
        assert_eq!(settling.wait(&job, &before, &decided), None);
        let begun = Instant::now().checked_sub(LAG).unwrap();
        settling.0.lock().unwrap().insert(job.clone(), begun);
        assert_eq!(settling.wait(&job, &before, &counted), None);
    }
}
