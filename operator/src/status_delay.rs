//! Counts and words of a status change in bursts, while workers become ready one after the other: those of one moment go in
//! one write, and the longer it lasts, the more of them. What decides something is written at once.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use roundhouse_api::TrainingJobStatus;

use crate::cache::Job;

/// How long counts and words may lag the first time, and twice as long each time after.
const LAG: Duration = Duration::from_secs(2);
const MAX_LAG: Duration = Duration::from_secs(10);
/// A job that has not come back by then is gone, or has come to rest.
const FORGOTTEN: Duration = Duration::from_mins(1);

/// Jobs whose counts and words have changed lately.
#[derive(Debug, Default)]
pub struct StatusDelay(Mutex<HashMap<Job, Changing>>);

#[derive(Clone, Copy, Debug)]
struct Changing {
    /// Since when they differ from what is stored.
    since: Option<Instant>,
    lag: Duration,
    last: Instant,
}

impl StatusDelay {
    /// How long to wait before `after` is written; `None`: now.
    pub fn wait(
        &self,
        job: &Job,
        before: &TrainingJobStatus,
        after: &TrainingJobStatus,
    ) -> Option<Duration> {
        self.wait_at(Instant::now(), job, before, after)
    }

    fn wait_at(
        &self,
        now: Instant,
        job: &Job,
        before: &TrainingJobStatus,
        after: &TrainingJobStatus,
    ) -> Option<Duration> {
        let mut jobs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if decisive(before) != decisive(after) {
            jobs.remove(job);
            return None;
        }
        jobs.retain(|_, it| now.duration_since(it.last) < FORGOTTEN);
        let changing = jobs.entry(job.clone()).or_insert(Changing {
            since: None,
            lag: LAG,
            last: now,
        });
        changing.last = now;
        let begun = *changing.since.get_or_insert(now);
        let left = changing.lag.saturating_sub(now.duration_since(begun));
        if left.is_zero() {
            changing.since = None;
            changing.lag = (changing.lag * 2).min(MAX_LAG);
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
    }

    #[test]
    fn counts_that_change_for_long_are_written_less_and_less_often() {
        let (delay, job) = (StatusDelay::default(), ("ns".to_owned(), "uid".to_owned()));
        let status = TrainingJobStatus::default();
        let begun = Instant::now();
        let mut written = Vec::new();
        for second in 0..60 {
            let now = begun + Duration::from_secs(second);
            if delay.wait_at(now, &job, &status, &status).is_none() {
                written.push(second);
            }
        }
        assert_eq!(written, [2, 7, 16, 27, 38, 49]);
        let later = begun + Duration::from_secs(60) + FORGOTTEN;
        assert_eq!(delay.wait_at(later, &job, &status, &status), Some(LAG));
    }
}
