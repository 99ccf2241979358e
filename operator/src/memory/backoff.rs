//! The pauses before a failed reconcile of a job is tried again. They grow with each failure in a
//! row. They have random jitter, so a thousand jobs that wait for one quota do not all request it
//! at one moment.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use tokio::time::Instant;

/// The pauses after errors: 1 to 2 s, then 2 to 4 s, and so on, up to 30 to 60 s.
const AFTER_ERROR: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_secs(1))
    .with_max_delay(Duration::from_secs(30))
    .without_max_times()
    .with_jitter();
/// The pauses after conflicts: 0.25 to 0.5 s, and so on, up to 5 to 10 s. They are shorter, because
/// the watches usually catch up a moment later.
const AFTER_CONFLICT: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(250))
    .with_max_delay(Duration::from_secs(5))
    .without_max_times()
    .with_jitter();
/// Longest pause that the API server may request. An outage may be over much earlier.
const LONGEST: Duration = Duration::from_secs(30);
/// A failure this long after the last pause begins again with a short one: a job may fail once an
/// hour and never succeed as a whole, because some of its writes are slow.
const QUIET: Duration = Duration::from_mins(1);

/// The back-off of one job.
#[derive(Debug, Default)]
pub struct Backoff {
    errors: Option<Delays>,
    conflicts: Option<Delays>,
}

#[derive(Debug)]
struct Delays {
    next: <ExponentialBuilder as BackoffBuilder>::Backoff,
    until: Instant,
}

impl Backoff {
    /// The pause after an error. `asked`: the pause that the API server requests.
    pub fn after_error(&mut self, asked: Option<Duration>) -> Duration {
        delay(&mut self.errors, AFTER_ERROR, asked)
    }

    /// The pause after a conflict: the API server had other objects than the caches.
    pub fn after_conflict(&mut self) -> Duration {
        delay(&mut self.conflicts, AFTER_CONFLICT, None)
    }

    /// A reconcile of the job succeeded, so the next pauses are short again.
    pub fn done(&mut self) {
        *self = Self::default();
    }
}

/// Events may wake a job before its pause is over. A failure at that time does not make the pause
/// longer.
fn delay(kept: &mut Option<Delays>, kind: ExponentialBuilder, asked: Option<Duration>) -> Duration {
    let now = Instant::now();
    kept.take_if(|delays| delays.until + QUIET <= now);
    let delays = kept.get_or_insert_with(|| Delays {
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn repeated_failures_double_the_pause_up_to_a_limit() {
        let mut backoff = Backoff::default();
        for expected in [1, 2, 4, 8, 16, 30, 30, 30] {
            let delay = backoff.after_error(None);
            let expected = Duration::from_secs(expected);
            assert!((expected..=expected * 2).contains(&delay), "{delay:?}");
            advance(delay).await;
        }
        backoff.done();
        let again = backoff.after_error(None);
        assert!(again <= Duration::from_secs(2), "{again:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn repeated_conflicts_double_the_pause_up_to_a_limit() {
        let mut backoff = Backoff::default();
        for expected in [250, 500, 1_000, 2_000, 4_000, 5_000, 5_000] {
            let delay = backoff.after_conflict();
            let expected = Duration::from_millis(expected);
            assert!((expected..=expected * 2).contains(&delay), "{delay:?}");
            advance(delay).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn failure_after_a_quiet_minute_has_a_short_pause() {
        let mut backoff = Backoff::default();
        for _ in 0..8 {
            let delay = backoff.after_conflict();
            advance(delay).await;
        }
        advance(QUIET).await;
        let delay = backoff.after_conflict();
        assert!(delay <= Duration::from_millis(500), "{delay:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn early_wakes_do_not_extend_the_pause() {
        let mut backoff = Backoff::default();
        let due = Instant::now() + backoff.after_error(None);
        for _ in 0..100 {
            advance(Duration::from_millis(5)).await;
            let delay = backoff.after_error(None);
            assert_eq!(Instant::now() + delay, due);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn simultaneous_failures_retry_at_different_times() {
        let delays = (0..100).map(|_| Backoff::default().after_error(None));
        let delays: BTreeSet<Duration> = delays.collect();
        assert!(delays.len() > 50, "{delays:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn retry_after_sets_the_pause_up_to_a_limit() {
        let asked = Duration::from_secs(20);
        assert_eq!(Backoff::default().after_error(Some(asked)), asked);
        let day = Duration::from_hours(24);
        assert_eq!(Backoff::default().after_error(Some(day)), LONGEST);
    }
}
