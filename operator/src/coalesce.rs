//! Events of one moment are worked on together: a job is looked at when its events pause, and at the latest after a bounded
//! time. Without the bound a steady stream of pod events, as of a thousand workers that start, would put its reconcile off
//! for as long as it lasts.

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
/// How long a job waits for such a pause.
pub const PATIENCE: Duration = Duration::from_millis(200);

/// The jobs that wait for a pause.
struct Waiting<T> {
    queue: DelayQueue<T>,
    jobs: HashMap<T, (Key, Instant)>,
}

impl<T: Clone + Eq + Hash> Waiting<T> {
    fn add(&mut self, job: T) {
        let now = Instant::now();
        match self.jobs.entry(job) {
            Entry::Occupied(known) => {
                let (key, latest) = known.get();
                self.queue.reset_at(key, (now + PAUSE).min(*latest));
            }
            Entry::Vacant(new) => {
                let key = self.queue.insert_at(new.key().clone(), now + PAUSE);
                new.insert((key, now + PATIENCE));
            }
        }
    }

    /// The next one that has waited long enough; none while nobody waits.
    async fn next(&mut self) -> Option<T> {
        let job = poll_fn(|context| self.queue.poll_expired(context)).await?;
        let job = job.into_inner();
        self.jobs.remove(&job);
        Some(job)
    }
}

/// Passes each job on when its events pause, or after [`PATIENCE`]. Those that wait when `events` end are not passed on.
pub fn coalesce<T>(events: impl Stream<Item = T> + Send) -> impl Stream<Item = T> + Send
where
    T: Clone + Eq + Hash + Send,
{
    let waiting = Waiting {
        queue: DelayQueue::new(),
        jobs: HashMap::new(),
    };
    let state = (Box::pin(events), waiting);
    futures::stream::unfold(state, |(mut events, mut waiting)| async move {
        loop {
            tokio::select! {
                // First: one that has waited for its whole time must not wait until nothing happens any more.
                biased;
                Some(job) = waiting.next() => return Some((job, (events, waiting))),
                event = events.next() => waiting.add(event?),
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

    /// An event of the job every 10 ms, so many times, and then nothing.
    fn steady(job: &'static str, times: usize) -> impl Stream<Item = &'static str> + Send {
        let events = iter(0..times).then(move |_| async move {
            sleep(Duration::from_millis(10)).await;
            job
        });
        events.chain(pending())
    }

    /// When jobs were passed on within ten seconds, in milliseconds.
    async fn passed(events: impl Stream<Item = &'static str> + Send) -> Vec<(&'static str, u128)> {
        let begun = Instant::now();
        let mut jobs = pin!(coalesce(events));
        let mut passed = Vec::new();
        while let Ok(Some(job)) = timeout(Duration::from_secs(10), jobs.next()).await {
            passed.push((job, begun.elapsed().as_millis()));
        }
        passed
    }

    #[tokio::test(start_paused = true)]
    async fn a_steady_stream_of_events_does_not_put_a_job_off_for_as_long_as_it_lasts() {
        let passed = passed(steady("digits", 100)).await;
        assert!((5..=6).contains(&passed.len()), "{passed:?}");
        assert!(passed[0].1 <= 10 + PATIENCE.as_millis() + 2, "{passed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn events_of_one_moment_are_one_look_and_jobs_do_not_wait_for_each_other() {
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
}
