//! When a job is looked at again that got nowhere: later after each time in a row, and not all such jobs at one moment.
//! A thousand jobs that wait for one quota must not ask for it once a second each.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use kube::runtime::utils::ResetTimerBackoff;
use kube::runtime::watcher::ExponentialBackoff;
use tokio::time::Instant;

use crate::job::JobKey;

/// After an error: 1 to 2 s, 2 to 4 s, and so on, until it is 30 to 60 s.
const AFTER_ERROR: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_secs(1))
    .with_max_delay(Duration::from_secs(30))
    .without_max_times()
    .with_jitter();
/// When the world was not as observed: the watches usually tell a moment later how it is. 0.25 to 0.5 s, and so on, until
/// it is 5 to 10 s.
const LOOK_AGAIN: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(250))
    .with_max_delay(Duration::from_secs(5))
    .without_max_times()
    .with_jitter();
/// Pause after a watch fails: 0.8 to 1.6 s, doubling to 10 to 20 s. Until then the operator sees no changes.
const AFTER_BREAK: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(800))
    .with_max_delay(Duration::from_secs(10))
    .without_max_times()
    .with_jitter();
/// The pauses are short again after any event, the begin of a list among them, and so long after the last error.
const WELL: Duration = Duration::from_mins(2);
/// The API server is not obeyed for longer, should it ask for that: an outage may be over long before.
const LONGEST: Duration = Duration::from_secs(30);
/// A job that has not come back so long after it was due is gone.
const FORGOTTEN: Duration = Duration::from_mins(1);

/// Pauses of one watch after its errors.
pub(crate) fn watch_backoff() -> ResetTimerBackoff<ExponentialBackoff> {
    ResetTimerBackoff::new(AFTER_BREAK.into(), WELL)
}

/// The jobs that got nowhere.
#[derive(Debug, Default)]
pub struct Backoff {
    errors: Waiting,
    looks: Waiting,
}

#[derive(Debug, Default)]
struct Waiting(Mutex<HashMap<JobKey, Delays>>);

#[derive(Debug)]
struct Delays {
    next: <ExponentialBuilder as BackoffBuilder>::Backoff,
    until: Instant,
}

impl Backoff {
    /// How long to wait after an error. `asked`: what the API server wants.
    pub fn after_error(&self, job: &JobKey, asked: Option<Duration>) -> Duration {
        self.errors.delay(job, AFTER_ERROR, asked)
    }

    /// How long to wait until the world is looked at again, since it was not as observed.
    pub fn look_again(&self, job: &JobKey) -> Duration {
        self.looks.delay(job, LOOK_AGAIN, None)
    }

    /// All that was decided for the job is done.
    pub fn done(&self, job: &JobKey) {
        self.errors.lock().remove(job);
        self.looks.lock().remove(job);
    }
}

impl Waiting {
    /// Events may wake a job before it is due. What goes wrong then makes the delay no longer.
    fn delay(&self, job: &JobKey, kind: ExponentialBuilder, asked: Option<Duration>) -> Duration {
        let now = Instant::now();
        let mut jobs = self.lock();
        jobs.retain(|_, delays| now < delays.until + FORGOTTEN);
        let delays = jobs.entry(job.clone()).or_insert_with(|| Delays {
            next: kind.build(),
            until: now,
        });
        if delays.until <= now {
            delays.until = now + delays.next.next().unwrap_or(LONGEST);
        }
        let asked = asked.map(|asked| now + asked.min(LONGEST));
        delays.until = delays.until.max(asked.unwrap_or(now));
        delays.until - now
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<JobKey, Delays>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tokio::time::advance;

    use super::*;

    fn job(uid: usize) -> JobKey {
        JobKey::new("ml", uid.to_string())
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_that_fails_again_and_again_is_tried_less_and_less_often() {
        let backoff = Backoff::default();
        for expected in [1, 2, 4, 8, 16, 30, 30, 30] {
            let delay = backoff.after_error(&job(0), None);
            let expected = Duration::from_secs(expected);
            assert!((expected..=expected * 2).contains(&delay), "{delay:?}");
            advance(delay).await;
        }
        let other = backoff.after_error(&job(1), None);
        assert!(other <= Duration::from_secs(2), "{other:?}");
        backoff.done(&job(0));
        let again = backoff.after_error(&job(0), None);
        assert!(again <= Duration::from_secs(2), "{again:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_is_refused_begins_anew_within_20_seconds_however_long_it_was_refused() {
        let mut pauses = watch_backoff();
        let next = |pauses: &mut ResetTimerBackoff<_>| Iterator::next(pauses).unwrap();
        for expected in [800, 1_600, 3_200, 6_400, 10_000, 10_000, 10_000] {
            let expected = Duration::from_millis(expected);
            let pause = next(&mut pauses);
            assert!((expected..=expected * 2).contains(&pause), "{pause:?}");
            advance(pause).await;
        }
        advance(WELL * 2).await;
        assert!(next(&mut pauses) < Duration::from_secs(2));
    }

    #[tokio::test(start_paused = true)]
    async fn looking_again_at_a_world_that_stays_as_it_is_becomes_rare() {
        let backoff = Backoff::default();
        for expected in [250, 500, 1_000, 2_000, 4_000, 5_000, 5_000] {
            let delay = backoff.look_again(&job(0));
            let expected = Duration::from_millis(expected);
            assert!((expected..=expected * 2).contains(&delay), "{delay:?}");
            advance(delay).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn events_that_wake_a_job_before_it_is_due_do_not_make_it_wait_longer() {
        let backoff = Backoff::default();
        let due = Instant::now() + backoff.after_error(&job(0), None);
        for _ in 0..100 {
            advance(Duration::from_millis(5)).await;
            let delay = backoff.after_error(&job(0), None);
            assert_eq!(Instant::now() + delay, due);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn jobs_that_fail_at_one_moment_are_not_tried_at_one_moment() {
        let backoff = Backoff::default();
        let delays = (0..100).map(|uid| backoff.after_error(&job(uid), None));
        let delays: BTreeSet<Duration> = delays.collect();
        assert!(delays.len() > 50, "{delays:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_waits_for_as_long_as_the_api_server_asks_it_to() {
        let backoff = Backoff::default();
        let asked = Duration::from_secs(20);
        assert_eq!(backoff.after_error(&job(0), Some(asked)), asked);
        let day = Duration::from_hours(24);
        assert_eq!(backoff.after_error(&job(0), Some(day)), LONGEST);
    }

    #[tokio::test(start_paused = true)]
    async fn jobs_that_are_gone_are_forgotten() {
        let backoff = Backoff::default();
        let delay = backoff.after_error(&job(0), None);
        advance(delay + FORGOTTEN).await;
        backoff.after_error(&job(1), None);
        assert_eq!(backoff.errors.lock().len(), 1);
    }
}
