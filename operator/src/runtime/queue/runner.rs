//! Gives slots to jobs: each job that is woken, or whose timer has ended, waits in the
//! [`WorkQueue`] until there is a slot for it. A reconcile is a task of its own, so one with long
//! computations delays no other.

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::time::Duration;

use futures::{Stream, StreamExt};
use tokio::task::{JoinError, JoinSet};
use tokio_util::time::DelayQueue;
use tokio_util::time::delay_queue::Key;

use crate::job::JobName;
use crate::runtime::queue::work_queue::{Lane, WorkQueue};

/// The state of the runner.
struct Dispatch {
    queue: WorkQueue,
    timers: Timers,
    steps: JoinSet<(JobName, Option<Duration>)>,
}

/// Timers of jobs that are reconciled later even if nothing changes, at most one per job.
#[derive(Default)]
struct Timers {
    queue: DelayQueue<JobName>,
    keys: HashMap<JobName, Key>,
}

impl Timers {
    fn set(&mut self, job: &JobName, after: Duration) {
        self.clear(job);
        let key = self.queue.insert(job.clone(), after.min(LONGEST));
        self.keys.insert(job.clone(), key);
    }

    fn clear(&mut self, job: &JobName) {
        if let Some(key) = self.keys.remove(job) {
            self.queue.remove(&key);
        }
    }

    /// Waits for the next job whose timer ends; `None` while there is no timer.
    async fn next(&mut self) -> Option<JobName> {
        let due = poll_fn(|context| self.queue.poll_expired(context)).await?;
        let job = due.into_inner();
        self.keys.remove(&job);
        Some(job)
    }
}

/// The longest timer that the queue of timers supports is two years.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3_600);

/// Reconciles jobs until `stop` is done, once `ready` is done. Then the reconciles that have begun
/// come to their end. `work` returns the time after which the job is reconciled again. `lane` is
/// the lane of a job whose timer has ended.
///
/// # Panics
/// If a reconcile panics. The caller turns panics of a job into its errors.
pub async fn dispatch<F>(
    num_slots: usize,
    wakes: impl Stream<Item = (JobName, Lane)>,
    ready: impl Future<Output = ()>,
    stop: impl Future<Output = ()>,
    lane: impl Fn(&JobName) -> Lane,
    work: impl Fn(JobName) -> F,
) where
    F: Future<Output = Option<Duration>> + Send + 'static,
{
    let mut state = Dispatch {
        queue: WorkQueue::new(num_slots),
        timers: Timers::default(),
        steps: JoinSet::new(),
    };
    let (mut wakes, mut ready, mut stop) = (pin!(wakes.fuse()), pin!(ready), pin!(stop));
    let mut is_ready = false;
    loop {
        if is_ready {
            state.begin(&work);
        }
        tokio::select! {
            () = &mut stop => break,
            () = &mut ready, if !is_ready => is_ready = true,
            Some((job, lane)) = wakes.next() => state.queue.add(job, lane),
            Some(job) = state.timers.next() => {
                let lane = lane(&job);
                state.queue.add(job, lane);
            }
            Some(ended) = state.steps.join_next() => state.end(ended),
        }
    }
    while let Some(ended) = state.steps.join_next().await {
        state.end(ended);
    }
}

impl Dispatch {
    /// Begins a reconcile of each job for which there is a slot.
    fn begin<F>(&mut self, work: impl Fn(JobName) -> F)
    where
        F: Future<Output = Option<Duration>> + Send + 'static,
    {
        while let Some(job) = self.queue.begin() {
            self.timers.clear(&job);
            let step = work(job.clone());
            self.steps.spawn(async move { (job, step.await) });
        }
    }

    fn end(&mut self, ended: Result<(JobName, Option<Duration>), JoinError>) {
        match ended {
            Ok((job, after)) => {
                self.queue.done(&job);
                if let Some(after) = after {
                    self.timers.set(&job, after);
                }
            }
            // A task is cancelled only when the set of tasks is dropped.
            Err(error) => {
                if let Ok(panic) = error.try_into_panic() {
                    std::panic::resume_unwind(panic);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
