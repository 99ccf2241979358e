//! Writes that take long go on beside the reconciles. A write may take as long as the slowest admission webhook, and a
//! reconcile holds one of few slots: it waits a moment for the usual answer, and then leaves the call to a task of its own.
//! When that ends it wakes the job. The caches show what was written; an error is the answer that the next reconcile gets.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use tokio::sync::mpsc::Sender;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use self::known::Known;
use crate::job::{JobKey, JobName};
use crate::memory::expectations::Written;
use crate::runtime::api::calls::{CREATE_DEADLINE, DEADLINE};
use crate::runtime::api::error::CallError;
use crate::watch::wake::Wake;

mod known;
#[cfg(test)]
mod tests;

/// How long a reconcile waits for a write.
const PATIENCE: Duration = Duration::from_millis(500);

/// Of a call to the API server that writes.
pub type Answer = Result<(), CallError>;

/// What a write does. Two equal ones are the same write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Write {
    /// The job that it is for.
    pub job: JobKey,
    /// Its name: writes of one job and action meet the same webhooks.
    pub action: &'static str,
    /// Whether the object is new.
    pub creates: bool,
    /// What is written.
    pub object: Written,
    /// Another number for another content: the error of a write is not that of a later one with another content.
    pub content_version: u64,
}

/// Writes that a reconcile did not wait for.
#[derive(Debug)]
pub struct SlowWrites {
    wake: Sender<Wake>,
    known: Arc<Mutex<Known>>,
}

impl SlowWrites {
    /// Jobs are woken through this channel.
    #[must_use]
    pub fn new(wake: Sender<Wake>) -> Self {
        Self {
            wake,
            known: Arc::default(),
        }
    }

    /// Writes, unless the same write is under way or has just failed. `call` is given its deadline. A creation has the time
    /// that the slowest webhook takes. Other writes have a short one at first, because an answer may be lost, and that of a
    /// creation after a silence.
    ///
    /// # Errors
    /// That of the call, or [`CallError::Pending`] if it continues.
    pub async fn run<F>(
        &self,
        write: Write,
        wake: JobName,
        call: impl FnOnce(Duration) -> F,
    ) -> Answer
    where
        F: Future<Output = Answer> + Send + 'static,
    {
        let since = Instant::now();
        let (answer, mut answered) = oneshot::channel();
        {
            let mut known = lock(&self.known);
            if let Some(error) = known.error_of(&write, since) {
                return Err(error);
            }
            let has_time = write.creates || known.was_silent(&write);
            let deadline = if has_time { CREATE_DEADLINE } else { DEADLINE };
            self.begin(&mut known, write, wake, answer, call(deadline));
        }
        if let Ok(Ok(result)) = timeout(PATIENCE, &mut answered).await {
            return result;
        }
        // It may come in this moment. After this it is known, or it wakes the job.
        let known = lock(&self.known);
        answered.close();
        let result = answered.try_recv();
        drop(known);
        result.unwrap_or(Err(CallError::Pending(since.elapsed())))
    }

    fn begin<F>(
        &self,
        known: &mut Known,
        write: Write,
        wake: JobName,
        to: oneshot::Sender<Answer>,
        call: F,
    ) where
        F: Future<Output = Answer> + Send + 'static,
    {
        let since = Instant::now();
        let (shared, sender, ends) = (Arc::clone(&self.known), self.wake.clone(), write.clone());
        let task = tokio::spawn(async move {
            let result = AssertUnwindSafe(call).catch_unwind().await;
            // One that panics gives no answer.
            let result = result.unwrap_or_else(|_| Err(CallError::Deadline(since.elapsed())));
            let was_awaited = lock(&shared).end(ends, to, result, Instant::now());
            if !was_awaited {
                // Closed only when the operator stops.
                let _ = sender.send(Wake::by_other(wake)).await;
            }
        });
        known.begin(write, since, task.abort_handle());
    }

    /// Whether a write of this job and action took long and was not refused.
    #[must_use]
    pub fn is_slow_and_sure(&self, job: &JobKey, action: &'static str) -> bool {
        lock(&self.known).is_slow_and_sure(job, action, Instant::now())
    }

    /// Ends all calls: the operator stops.
    pub fn stop(&self) {
        lock(&self.known).stop();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
