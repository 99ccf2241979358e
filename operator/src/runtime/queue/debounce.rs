//! Collects the events of a job: the job is reconciled when its events pause, or at the latest
//! after a bounded time. Without the bound a steady stream of events, as of a thousand pods that
//! start, would delay its reconcile for as long as it lasts.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::future::poll_fn;
use std::hash::Hash;
use std::time::Duration;

use futures::{Stream, StreamExt};
use tokio::time::Instant;
use tokio_util::time::DelayQueue;
use tokio_util::time::delay_queue::Key;

/// How long the events of a job must pause.
pub const PAUSE: Duration = Duration::from_millis(20);
/// How long a job waits for such a pause at most.
pub const PATIENCE: Duration = Duration::from_millis(200);

/// The jobs that wait for a pause.
struct WaitingJobs<T, C> {
    queue: DelayQueue<T>,
    jobs: HashMap<T, WaitingJob<C>>,
}

/// A job that waits.
struct WaitingJob<C> {
    key: Key,
    latest: Instant,
    /// The first of its causes, in their order.
    cause: C,
}

impl<T: Clone + Eq + Hash, C: Copy + Ord> WaitingJobs<T, C> {
    fn add(&mut self, job: T, cause: C) {
        let now = Instant::now();
        match self.jobs.entry(job) {
            Entry::Occupied(mut known) => {
                let waiting = known.get_mut();
                waiting.cause = waiting.cause.min(cause);
                self.queue
                    .reset_at(&waiting.key, (now + PAUSE).min(waiting.latest));
            }
            Entry::Vacant(new) => {
                let key = self.queue.insert_at(new.key().clone(), now + PAUSE);
                let latest = now + PATIENCE;
                new.insert(WaitingJob { key, latest, cause });
            }
        }
    }

    /// Waits for the next job that is due; `None` while no job waits.
    async fn next(&mut self) -> Option<(T, C)> {
        let job = poll_fn(|context| self.queue.poll_expired(context)).await?;
        let job = job.into_inner();
        let waiting = self.jobs.remove(&job)?;
        Some((job, waiting.cause))
    }
}

/// Passes each job on when its events pause, or after [`PATIENCE`], with the least of their causes.
/// Jobs that wait when `events` end are dropped.
pub fn debounce<T, C>(
    events: impl Stream<Item = (T, C)> + Send,
) -> impl Stream<Item = (T, C)> + Send
where
    T: Clone + Eq + Hash + Send,
    C: Copy + Ord + Send,
{
    let waiting = WaitingJobs {
        queue: DelayQueue::new(),
        jobs: HashMap::new(),
    };
    let state = (Box::pin(events), waiting);
    futures::stream::unfold(state, |(mut events, mut waiting)| async move {
        loop {
            tokio::select! {
                // Jobs that are due come first: otherwise a steady stream of events would delay
                // them.
                biased;
                Some(job) = waiting.next() => return Some((job, (events, waiting))),
                event = events.next() => {
                    let (job, cause) = event?;
                    waiting.add(job, cause);
                }
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::stream::{iter, pending};
    use tokio::time::{sleep, timeout};

    use super::*;

    /// An event of the job every 10 ms, this many times, and then none.
    fn steady(job: &'static str, times: usize) -> impl Stream<Item = &'static str> + Send {
        let events = iter(0..times).then(move |_| async move {
            sleep(Duration::from_millis(10)).await;
            job
        });
        events.chain(pending())
    }

    /// The jobs that are passed on within ten seconds, and when, in milliseconds.
    async fn passed(events: impl Stream<Item = &'static str> + Send) -> Vec<(&'static str, u128)> {
        let begun = Instant::now();
        let mut jobs = pin!(debounce(events.map(|job| (job, ()))));
        let mut passed = Vec::new();
        while let Ok(Some((job, ()))) = timeout(Duration::from_secs(10), jobs.next()).await {
            passed.push((job, begun.elapsed().as_millis()));
        }
        passed
    }

    #[tokio::test(start_paused = true)]
    async fn steady_events_delay_a_job_for_a_bounded_time() {
        let passed = passed(steady("digits", 100)).await;
        assert!((5..=6).contains(&passed.len()), "{passed:?}");
        assert!(passed[0].1 <= 10 + PATIENCE.as_millis() + 2, "{passed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn burst_of_events_causes_one_reconcile_per_job() {
        let burst = iter(["a", "b", "a", "a", "b"]).chain(pending());
        let mut once = passed(burst).await;
        once.sort_unstable();
        assert_eq!(
            once.iter().map(|(job, _)| *job).collect::<Vec<_>>(),
            ["a", "b"]
        );
        let both = futures::stream::select(steady("busy", 100), steady("quiet", 1));
        let both = passed(both).await;
        assert!(matches!(both[0], ("quiet", at) if at <= 35), "{both:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn least_of_several_causes_counts() {
        let events = iter([("a", 2), ("a", 1), ("b", 3), ("a", 2)]).chain(pending());
        let mut once: Vec<_> = debounce(events).take(2).collect().await;
        once.sort_unstable();
        assert_eq!(once, [("a", 1), ("b", 3)]);
    }
}
