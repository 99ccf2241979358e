//! Counts and words of a status change in bursts, while workers become ready one after the other. They are gathered for some
//! seconds and go in one write; the longer a burst lasts, the longer they are gathered. What decides something is written at
//! once.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use roundhouse_api::{ConditionType, TrainingJobStatus, WorkersStatus};

use crate::job::JobKey;

/// How long counts and words may lag the first time, and twice as long each time after.
const LAG: Duration = Duration::from_secs(2);
const MAX_LAG: Duration = Duration::from_secs(10);
/// A job that has not come back by then is gone, or has come to rest.
const FORGOTTEN: Duration = Duration::from_mins(1);

/// Jobs whose counts and words have changed lately.
#[derive(Debug, Default)]
pub struct StatusDelay(Mutex<HashMap<JobKey, Changing>>);

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
        job: &JobKey,
        before: &TrainingJobStatus,
        after: &TrainingJobStatus,
    ) -> Option<Duration> {
        self.wait_at(Instant::now(), job, before, after)
    }

    fn wait_at(
        &self,
        now: Instant,
        job: &JobKey,
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

/// The status without what only describes. That the last pod of a suspended job is gone decides when a queue gives its place to
/// another.
fn decisive(status: &TrainingJobStatus) -> TrainingJobStatus {
    let mut status = status.clone();
    let workers = status.workers.take().unwrap_or_default();
    let leaves = workers.pods > 0 && status.is_true(ConditionType::Suspended);
    status.workers = Some(WorkersStatus {
        pods: u32::from(leaves),
        // The event about it is sent until it is stored.
        left_out: workers.left_out,
        ..WorkersStatus::default()
    });
    status.replicas = 0;
    for condition in &mut status.conditions {
        condition.message.clear();
    }
    status
}

#[cfg(test)]
mod tests {
    use roundhouse_api::ConditionReason;
    use roundhouse_planner::status::set_condition;

    use super::*;

    #[test]
    fn counts_wait_and_decisions_do_not() {
        let (settling, job) = (StatusDelay::default(), JobKey::new("ns", "uid"));
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
        let mut without = counted.clone();
        without.workers.as_mut().unwrap().left_out = Some("digits-worker-1".to_owned());
        assert_eq!(settling.wait(&job, &before, &without), None);
    }

    #[test]
    fn that_the_last_pod_of_a_suspended_job_is_gone_is_written_at_once() {
        let (delay, job) = (StatusDelay::default(), JobKey::new("ns", "uid"));
        let status = |pods, is_suspended| {
            let workers = WorkersStatus {
                pods,
                ..WorkersStatus::default()
            };
            let mut status = TrainingJobStatus {
                workers: Some(workers),
                ..TrainingJobStatus::default()
            };
            let reason = ConditionReason::Suspended;
            let now = jiff::Timestamp::UNIX_EPOCH;
            set_condition(
                &mut status,
                ConditionType::Suspended,
                is_suspended,
                reason,
                "",
                now,
            );
            status
        };
        let wait = |before, after, is_suspended| {
            delay.wait(
                &job,
                &status(before, is_suspended),
                &status(after, is_suspended),
            )
        };
        assert!(wait(3, 1, true).is_some());
        assert_eq!(wait(1, 0, true), None);
        assert!(wait(0, 3, false).is_some());
    }

    #[test]
    fn a_change_of_the_number_by_which_replacements_count_is_written_at_once() {
        // Another operator would count by the old number.
        let (delay, job) = (StatusDelay::default(), JobKey::new("ns", "uid"));
        let before = TrainingJobStatus::default();
        let mut after = before.clone();
        after.replacements.pods = 3;
        assert_eq!(delay.wait(&job, &before, &after), None);
    }

    #[test]
    fn counts_that_change_for_long_are_written_less_and_less_often() {
        let (delay, job) = (StatusDelay::default(), JobKey::new("ns", "uid"));
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
