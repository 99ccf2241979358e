//! Writes that take long continue beside the reconciles. A write may take as long as the slowest
//! admission webhook, and a reconcile holds one of few slots: it waits a moment for the usual
//! answer, and then leaves the call to a task of its own. When the call ends, the task wakes the
//! job. The caches show a successful write; the next reconcile gets an error.

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

/// The result of a call to the API server that writes.
pub type Answer = Result<(), CallError>;

/// The identity of a write. Two equal ones are the same write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Write {
    /// The job that the write is for.
    pub job: JobKey,
    /// Name of the action: writes of one job and action pass the same webhooks.
    pub action: &'static str,
    /// Whether the write creates the object.
    pub creates: bool,
    /// The object that is written.
    pub object: Written,
    /// Differs between contents: the error of a write does not belong to a later write with another
    /// content.
    pub content_version: u64,
}

/// Writes that continue, and the wakes of their jobs.
#[derive(Debug)]
pub struct SlowWrites {
    wake: Sender<Wake>,
    known: Arc<Mutex<Known>>,
}

impl SlowWrites {
    /// `wake`: the channel through which jobs are woken.
    #[must_use]
    pub fn new(wake: Sender<Wake>) -> Self {
        Self {
            wake,
            known: Arc::default(),
        }
    }

    /// Writes, unless the same write continues or has just failed. `call` gets its deadline. A
    /// creation has as much time as the slowest webhook takes. Other writes have a short deadline
    /// at first, because an answer may be lost, and that of a creation after a timeout.
    ///
    /// # Errors
    /// The error of the call, or [`CallError::Pending`] if the call continues.
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
        // The answer may arrive now. Once the receiver is closed, the task stores it and wakes the
        // job.
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
            // A call that panics counts as a timeout.
            let result = result.unwrap_or_else(|_| Err(CallError::Deadline(since.elapsed())));
            let was_awaited = lock(&shared).end(ends, to, result, Instant::now());
            if !was_awaited {
                // Closed only when the operator stops.
                let _ = sender.send(Wake::by_other(wake)).await;
            }
        });
        known.begin(write, since, task.abort_handle());
    }

    /// Whether a write of this job and action took long and succeeded.
    #[must_use]
    pub fn is_slow_and_sure(&self, job: &JobKey, action: &'static str) -> bool {
        lock(&self.known).is_slow_and_sure(job, action, Instant::now())
    }

    /// Ends all calls, because the operator stops.
    pub fn stop(&self) {
        lock(&self.known).stop();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
