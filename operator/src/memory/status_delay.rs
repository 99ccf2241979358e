//! Counts and messages of a status change in bursts, while workers become ready one after the
//! other. The operator gathers them for some seconds and writes them together; the longer a burst
//! lasts, the longer it gathers. It writes decisions at once.

use std::time::{Duration, Instant};

use roundhouse_api::{ConditionType, TrainingJobStatus, WorkersStatus};

/// How long counts and messages may lag the first time. Each further lag is twice as long.
const LAG: Duration = Duration::from_secs(2);
const MAX_LAG: Duration = Duration::from_secs(10);
/// A burst is over when the counts have not changed for this time.
const PAUSE: Duration = Duration::from_mins(1);

/// The burst of one job, if its counts and messages have changed lately.
#[derive(Debug, Default)]
pub struct StatusDelay(Option<Burst>);

#[derive(Clone, Copy, Debug)]
struct Burst {
    /// Since when the counts and messages differ from the stored ones.
    since: Option<Instant>,
    lag: Duration,
    last: Instant,
}

impl StatusDelay {
    /// How long to wait before `after` is written; `None`: write it now.
    pub fn wait(
        &mut self,
        before: &TrainingJobStatus,
        after: &TrainingJobStatus,
    ) -> Option<Duration> {
        self.wait_at(Instant::now(), before, after)
    }

    fn wait_at(
        &mut self,
        now: Instant,
        before: &TrainingJobStatus,
        after: &TrainingJobStatus,
    ) -> Option<Duration> {
        if decisive(before) != decisive(after) {
            self.0 = None;
            return None;
        }
        let known = self.0.filter(|it| now.duration_since(it.last) < PAUSE);
        let mut burst = known.unwrap_or(Burst {
            since: None,
            lag: LAG,
            last: now,
        });
        burst.last = now;
        let begun = *burst.since.get_or_insert(now);
        let left = burst.lag.saturating_sub(now.duration_since(begun));
        if left.is_zero() {
            burst.since = None;
            burst.lag = (burst.lag * 2).min(MAX_LAG);
        }
        self.0 = Some(burst);
        (!left.is_zero()).then_some(left)
    }
}

/// The status without descriptive fields. Whether a suspended job still has pods is decisive: its
/// queue gives the job's quota to another job when the last pod is gone.
fn decisive(status: &TrainingJobStatus) -> TrainingJobStatus {
    let mut status = status.clone();
    let workers = status.workers.take().unwrap_or_default();
    let leaves = workers.pods > 0 && status.is_true(ConditionType::Suspended);
    status.workers = Some(WorkersStatus {
        pods: u32::from(leaves),
        // The operator publishes the event about it until it is stored.
        left_out: workers.left_out,
        ..WorkersStatus::default()
    });
    status.replicas = 0;
    for condition in &mut status.conditions {
        condition.message.clear();
    }
    status.blocked.clear();
    status.unschedulable = None;
    status
}

#[cfg(test)]
mod tests {
    use roundhouse_api::ConditionReason;
    use roundhouse_planner::status::set_condition;

    use super::*;

    #[test]
    fn counts_wait_and_decisions_do_not() {
        let mut delay = StatusDelay::default();
        let before = TrainingJobStatus::default();
        let mut counted = before.clone();
        counted.workers = Some(WorkersStatus {
            ready: 1,
            ..WorkersStatus::default()
        });
        assert!(delay.wait(&before, &counted).is_some());
        let mut decided = counted.clone();
        decided.incidents.total = 1;
        assert_eq!(delay.wait(&before, &decided), None);
        let mut without = counted.clone();
        without.workers.as_mut().unwrap().left_out = Some("digits-worker-1".to_owned());
        assert_eq!(delay.wait(&before, &without), None);
    }

    #[test]
    fn last_pod_of_a_suspended_job_is_written_at_once() {
        let mut delay = StatusDelay::default();
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
        let mut wait = |before, after, is_suspended| {
            delay.wait(&status(before, is_suspended), &status(after, is_suspended))
        };
        assert!(wait(3, 1, true).is_some());
        assert_eq!(wait(1, 0, true), None);
        assert!(wait(0, 3, false).is_some());
    }

    #[test]
    fn changed_replacement_count_is_written_at_once() {
        // A new leader would count replacements by the old number.
        let mut delay = StatusDelay::default();
        let before = TrainingJobStatus::default();
        let mut after = before.clone();
        after.replacements.pods = 3;
        assert_eq!(delay.wait(&before, &after), None);
    }

    #[test]
    fn long_bursts_of_counts_are_written_less_often() {
        let mut delay = StatusDelay::default();
        let status = TrainingJobStatus::default();
        let begun = Instant::now();
        let mut written = Vec::new();
        for second in 0..60 {
            let now = begun + Duration::from_secs(second);
            if delay.wait_at(now, &status, &status).is_none() {
                written.push(second);
            }
        }
        assert_eq!(written, [2, 7, 16, 27, 38, 49]);
        let later = begun + Duration::from_secs(60) + PAUSE;
        assert_eq!(delay.wait_at(later, &status, &status), Some(LAG));
    }
}
