//! Writes beside the reconciles. A write may take as long as the slowest admission webhook, and a reconcile holds
//! one of few slots: it waits a moment for the usual answer, and then leaves the call to a task of its own. When that
//! ends it wakes the job, and the next reconcile takes its result.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use kube::runtime::reflector::ObjectRef;
use roundhouse_api::TrainingJob;
use tokio::sync::mpsc::Sender;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::cache::Job;
use crate::calls::{CREATE_DEADLINE, DEADLINE};
use crate::error::CallError;
use crate::expectations::Written;
use crate::lane::Wake;

/// How long a reconcile waits for a write.
const PATIENCE: Duration = Duration::from_millis(500);
/// A result that nobody has asked for in this time is not wanted any more.
const FORGOTTEN: Duration = CREATE_DEADLINE.saturating_mul(2);

/// A write: its job, its action, its object, and what it says. The result of one is not that of a later one that says something
/// else.
type Key = (Job, &'static str, Written, u64);

/// Writes that a reconcile did not wait for.
#[derive(Debug)]
pub struct Making {
    wake: Sender<Wake>,
    calls: Mutex<HashMap<Key, Call>>,
    /// Writes whose last try got no answer, and when that was.
    silent: Mutex<HashMap<Key, Instant>>,
}

#[derive(Debug)]
struct Call {
    since: Instant,
    task: JoinHandle<Result<(), CallError>>,
    /// Whether it was done.
    has_made: Arc<AtomicBool>,
}

impl Making {
    /// Jobs are woken through this channel.
    #[must_use]
    pub fn new(wake: Sender<Wake>) -> Self {
        Self {
            wake,
            calls: Mutex::default(),
            silent: Mutex::default(),
        }
    }

    /// Creates an object, unless its creation is under way or its result is at hand.
    ///
    /// # Errors
    /// That of the creation, or [`CallError::Pending`] if it continues.
    pub async fn make<F>(
        &self,
        job: &Job,
        wake: ObjectRef<TrainingJob>,
        (action, what): (&'static str, &Written),
        creation: F,
    ) -> Result<(), CallError>
    where
        F: Future<Output = Result<(), CallError>> + Send + 'static,
    {
        let key = (job.clone(), action, what.clone(), 0);
        self.run(key, wake, creation).await
    }

    /// Changes or deletes an object, unless that is under way or its result is at hand. `write` is given its deadline: a
    /// short one first, because an answer may be lost, and the next time one that the slowest admission webhook keeps. `says`:
    /// a number that differs from that of other writes of this action on the object.
    ///
    /// # Errors
    /// That of the write, or [`CallError::Pending`] if it continues.
    pub async fn change<F>(
        &self,
        job: &Job,
        wake: ObjectRef<TrainingJob>,
        (action, what, says): (&'static str, &Written, u64),
        write: impl FnOnce(Duration) -> F,
    ) -> Result<(), CallError>
    where
        F: Future<Output = Result<(), CallError>> + Send + 'static,
    {
        let key = (job.clone(), action, what.clone(), says);
        let was_silent = lock(&self.silent).contains_key(&key);
        let deadline = if was_silent {
            CREATE_DEADLINE
        } else {
            DEADLINE
        };
        let result = self.run(key.clone(), wake, write(deadline)).await;
        let mut silent = lock(&self.silent);
        silent.retain(|_, since| since.elapsed() < FORGOTTEN);
        match result {
            Err(CallError::Pending(_)) => {}
            Err(CallError::Deadline(_)) => _ = silent.insert(key, Instant::now()),
            Ok(()) | Err(CallError::Kube(_)) => _ = silent.remove(&key),
        }
        result
    }

    async fn run<F>(
        &self,
        key: Key,
        wake: ObjectRef<TrainingJob>,
        write: F,
    ) -> Result<(), CallError>
    where
        F: Future<Output = Result<(), CallError>> + Send + 'static,
    {
        if let Some(known) = self.look(&key) {
            return known;
        }
        let since = Instant::now();
        let (sender, has_made) = (self.wake.clone(), Arc::new(AtomicBool::new(false)));
        let made = Arc::clone(&has_made);
        let mut task = tokio::spawn(async move {
            let result = write.await;
            made.store(result.is_ok(), Ordering::Relaxed);
            if since.elapsed() >= PATIENCE {
                // Closed only when the operator stops.
                let _ = sender.send(Wake::by_other(wake)).await;
            }
            result
        });
        if let Ok(ended) = timeout(PATIENCE, &mut task).await {
            return ended.unwrap_or(Err(CallError::Deadline(PATIENCE)));
        }
        let call = Call {
            since,
            task,
            has_made,
        };
        lock(&self.calls).insert(key, call);
        Err(CallError::Pending(since.elapsed()))
    }

    /// What is known of a write that was begun before.
    fn look(&self, key: &Key) -> Option<Result<(), CallError>> {
        let mut calls = lock(&self.calls);
        calls.retain(|_, call| !call.task.is_finished() || call.since.elapsed() < FORGOTTEN);
        let call = calls.get_mut(key)?;
        let elapsed = call.since.elapsed();
        let Some(ended) = (&mut call.task).now_or_never() else {
            return Some(Err(CallError::Pending(elapsed)));
        };
        calls.remove(key);
        // It cannot be joined only if it panicked: then nobody answered.
        Some(ended.unwrap_or(Err(CallError::Deadline(elapsed))))
    }

    /// Whether a creation of the job took long and was not refused.
    #[must_use]
    pub fn is_slow_and_sure(&self, job: &Job) -> bool {
        let calls = lock(&self.calls);
        let mut of_job = calls.iter().filter(|((of, ..), _)| of == job);
        of_job.any(|(_, call)| call.has_made.load(Ordering::Relaxed))
    }

    /// Ends all calls: the operator stops.
    pub fn stop(&self) {
        for (_, call) in lock(&self.calls).drain() {
            call.task.abort();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use tokio::sync::mpsc::{Receiver, channel};
    use tokio::time::sleep;

    use super::*;

    fn making() -> (Making, Receiver<Wake>) {
        let (wake, wakes) = channel(8);
        (Making::new(wake), wakes)
    }

    fn job() -> Job {
        ("ml".to_owned(), "uid".to_owned())
    }

    /// Asks for the Service of the job; the API server answers after so many seconds.
    async fn make(
        making: &Making,
        seconds: u64,
        answer: Result<(), CallError>,
    ) -> Result<(), CallError> {
        let creation = async move {
            sleep(Duration::from_secs(seconds)).await;
            answer
        };
        let wake = ObjectRef::new("digits").within("ml");
        let what = ("ApplyService", &Written::Service);
        making.make(&job(), wake, what, creation).await
    }

    fn refused() -> Result<(), CallError> {
        let status = Status::failure("no", "Forbidden").with_code(403);
        Err(CallError::Kube(kube::Error::Api(status.boxed())))
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_comes_at_once_is_the_result_and_wakes_nobody() {
        let (making, mut wakes) = making();
        assert!(make(&making, 0, Ok(())).await.is_ok());
        let error = make(&making, 0, refused()).await.unwrap_err();
        assert_eq!(error.code(), Some(403));
        assert!(wakes.try_recv().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_creation_holds_a_reconcile_for_a_moment_and_is_made_once() {
        let (making, mut wakes) = making();
        let begun = Instant::now();
        for _ in 0..3 {
            let error = make(&making, 20, refused()).await.unwrap_err();
            assert!(matches!(error, CallError::Pending(_)), "{error}");
        }
        assert!(begun.elapsed() < PATIENCE * 2, "only the first waits");
        wakes.recv().await.unwrap();
        assert!(begun.elapsed() >= Duration::from_secs(20));
        let error = make(&making, 0, Ok(())).await.unwrap_err();
        assert_eq!(error.code(), Some(403), "its result is taken");
        assert!(
            make(&making, 0, Ok(())).await.is_ok(),
            "and then it is tried again"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_creation_that_took_long_and_was_not_refused_lets_all_others_be_made_at_once() {
        let (making, mut wakes) = making();
        for (answer, expected) in [(refused(), false), (Ok(()), true)] {
            make(&making, 20, answer).await.unwrap_err();
            assert!(!making.is_slow_and_sure(&job()), "it is under way");
            wakes.recv().await.unwrap();
            assert_eq!(making.is_slow_and_sure(&job()), expected);
            let _ = make(&making, 0, Ok(())).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_without_an_answer_has_more_time_the_next_time() {
        let (making, mut wakes) = making();
        let what = Written::Pod("digits-0".to_owned());
        let change = async |action| {
            let wake = ObjectRef::new("digits").within("ml");
            let slow = |deadline: Duration| async move {
                let webhook = sleep(Duration::from_secs(10));
                let answered = timeout(deadline, webhook).await;
                answered.map_err(|_| CallError::Deadline(deadline))
            };
            making.change(&job(), wake, (action, &what, 1), slow).await
        };
        let mut took = Vec::new();
        for _ in 0..2 {
            let begun = Instant::now();
            let error = change("IssueMembership").await.unwrap_err();
            assert!(matches!(error, CallError::Pending(_)), "{error}");
            // Another action on the same object is not that one.
            let error = change("DeletePod").await.unwrap_err();
            assert!(matches!(error, CallError::Pending(_)), "{error}");
            wakes.recv().await.unwrap();
            took.push((begun.elapsed().as_secs(), change("IssueMembership").await));
            wakes.recv().await.unwrap();
            let _ = change("DeletePod").await;
        }
        let [(5, Err(CallError::Deadline(_))), (10, Ok(()))] = took[..] else {
            panic!("{took:?}");
        };
    }

    #[tokio::test(start_paused = true)]
    async fn the_result_of_a_slow_change_is_not_that_of_another_one() {
        let (making, mut wakes) = making();
        let what = Written::Pod("digits-0".to_owned());
        let written = std::sync::Mutex::new(Vec::new());
        let change = async |generation, seconds| {
            let wake = ObjectRef::new("digits").within("ml");
            let write = |_| {
                written.lock().unwrap().push(generation);
                async move {
                    sleep(Duration::from_secs(seconds)).await;
                    Ok(())
                }
            };
            let what = ("IssueMembership", &what, generation);
            making.change(&job(), wake, what, write).await
        };
        change(2, 3).await.unwrap_err();
        wakes.recv().await.unwrap();
        // Nobody has asked for the result: the caches have shown it before.
        assert!(change(3, 0).await.is_ok());
        assert_eq!(*written.lock().unwrap(), [2, 3]);
    }
}
