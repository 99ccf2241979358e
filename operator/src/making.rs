//! Writes beside the reconciles. A write may take as long as the slowest admission webhook, and a reconcile holds
//! one of few slots: it waits a moment for the usual answer, and then leaves the call to a task of its own. When that
//! ends it wakes the job. The caches show what was written; what was refused the next reconcile takes as its answer.

use std::collections::HashMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use kube::runtime::reflector::ObjectRef;
use roundhouse_api::TrainingJob;
use tokio::sync::mpsc::Sender;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use crate::cache::Job;
use crate::calls::{CREATE_DEADLINE, DEADLINE};
use crate::error::CallError;
use crate::expectations::Written;
use crate::lane::Wake;

/// How long a reconcile waits for a write.
const PATIENCE: Duration = Duration::from_millis(500);
/// From then on an error that nobody has asked for is not wanted any more, and nothing is known of how long writes take.
const FORGOTTEN: Duration = CREATE_DEADLINE.saturating_mul(2);

/// A write: its job, its action, its object, and what it says. The error of one is not that of a later one that says something
/// else.
type Key = (Job, &'static str, Written, u64);
/// Writes of one job and action: they meet the same webhooks.
type Kind = (Job, &'static str);
type Answer = Result<(), CallError>;

/// Writes that a reconcile did not wait for.
#[derive(Debug)]
pub struct Making {
    wake: Sender<Wake>,
    calls: Arc<Mutex<Calls>>,
}

#[derive(Debug, Default)]
struct Calls {
    known: HashMap<Key, Call>,
    /// Kinds of which one took long and was done, and when that was.
    sure: HashMap<Kind, Instant>,
    /// Kinds of which one got no answer, and when that was.
    silent: HashMap<Kind, Instant>,
}

#[derive(Debug)]
enum Call {
    UnderWay { since: Instant, task: AbortHandle },
    Failed { at: Instant, error: CallError },
}

impl Making {
    /// Jobs are woken through this channel.
    #[must_use]
    pub fn new(wake: Sender<Wake>) -> Self {
        Self {
            wake,
            calls: Arc::default(),
        }
    }

    /// Creates an object, unless its creation is under way or has just failed.
    ///
    /// # Errors
    /// That of the creation, or [`CallError::Pending`] if it continues.
    pub async fn make<F>(
        &self,
        job: &Job,
        wake: ObjectRef<TrainingJob>,
        (action, what): (&'static str, &Written),
        creation: F,
    ) -> Answer
    where
        F: Future<Output = Answer> + Send + 'static,
    {
        let key = (job.clone(), action, what.clone(), 0);
        self.run(key, wake, creation).await
    }

    /// Changes or deletes an object, unless that is under way or has just failed. `write` is given its deadline: a
    /// short one at first, because an answer may be lost, and after a silence one that the slowest admission webhook keeps.
    /// `says`: a number that differs from that of other writes of this action on the object.
    ///
    /// # Errors
    /// That of the write, or [`CallError::Pending`] if it continues.
    pub async fn change<F>(
        &self,
        job: &Job,
        wake: ObjectRef<TrainingJob>,
        (action, what, says): (&'static str, &Written, u64),
        write: impl FnOnce(Duration) -> F,
    ) -> Answer
    where
        F: Future<Output = Answer> + Send + 'static,
    {
        let was_silent = lock(&self.calls).was_silent(&(job.clone(), action));
        let deadline = if was_silent {
            CREATE_DEADLINE
        } else {
            DEADLINE
        };
        let key = (job.clone(), action, what.clone(), says);
        self.run(key, wake, write(deadline)).await
    }

    async fn run<F>(&self, key: Key, wake: ObjectRef<TrainingJob>, write: F) -> Answer
    where
        F: Future<Output = Answer> + Send + 'static,
    {
        if let Some(known) = lock(&self.calls).look(&key) {
            return known;
        }
        let since = Instant::now();
        let (answer, mut answered) = oneshot::channel();
        self.begin(key, wake, answer, write);
        if let Ok(Ok(result)) = timeout(PATIENCE, &mut answered).await {
            return result;
        }
        // It may come in this moment. After this it is known, or it wakes the job.
        let calls = lock(&self.calls);
        answered.close();
        let result = answered.try_recv();
        drop(calls);
        result.unwrap_or(Err(CallError::Pending(since.elapsed())))
    }

    fn begin<F>(
        &self,
        key: Key,
        wake: ObjectRef<TrainingJob>,
        to: oneshot::Sender<Answer>,
        write: F,
    ) where
        F: Future<Output = Answer> + Send + 'static,
    {
        let since = Instant::now();
        let (calls, sender, ends) = (Arc::clone(&self.calls), self.wake.clone(), key.clone());
        let task = async move {
            let result = AssertUnwindSafe(write).catch_unwind().await;
            // One that panics gives no answer.
            let result = result.unwrap_or_else(|_| Err(CallError::Deadline(since.elapsed())));
            let was_awaited = lock(&calls).end(ends, to, result);
            if !was_awaited {
                // Closed only when the operator stops.
                let _ = sender.send(Wake::by_other(wake)).await;
            }
        };
        let mut calls = lock(&self.calls);
        let task = tokio::spawn(task).abort_handle();
        calls.known.insert(key, Call::UnderWay { since, task });
    }

    /// Whether a write of this job and action took long and was not refused.
    #[must_use]
    pub fn is_slow_and_sure(&self, job: &Job, action: &'static str) -> bool {
        let mut calls = lock(&self.calls);
        calls.forget();
        calls.sure.contains_key(&(job.clone(), action))
    }

    /// Ends all calls: the operator stops.
    pub fn stop(&self) {
        for (_, call) in lock(&self.calls).known.drain() {
            if let Call::UnderWay { task, .. } = call {
                task.abort();
            }
        }
    }
}

impl Calls {
    fn forget(&mut self) {
        let is_recent = |at: &Instant| at.elapsed() < FORGOTTEN;
        self.sure.retain(|_, at| is_recent(at));
        self.silent.retain(|_, at| is_recent(at));
        self.known.retain(|_, call| match call {
            Call::UnderWay { .. } => true,
            Call::Failed { at, .. } => is_recent(at),
        });
    }

    fn was_silent(&mut self, kind: &Kind) -> bool {
        self.forget();
        self.silent.contains_key(kind)
    }

    /// What is known of a write that was begun before. An error is taken once, for all writes of its kind that have failed: what
    /// is tried again next shall not fail because of an old answer.
    fn look(&mut self, key: &Key) -> Option<Answer> {
        self.forget();
        if let Call::UnderWay { since, .. } = self.known.get(key)? {
            return Some(Err(CallError::Pending(since.elapsed())));
        }
        let known = self.known.remove(key)?;
        let is_of_kind = |other: &Key| other.0 == key.0 && other.1 == key.1;
        self.known
            .retain(|other, call| !is_of_kind(other) || matches!(call, Call::UnderWay { .. }));
        match known {
            Call::Failed { error, .. } => Some(Err(error)),
            Call::UnderWay { .. } => None,
        }
    }

    /// A write has ended. Returns whether a reconcile has waited for it.
    fn end(&mut self, key: Key, to: oneshot::Sender<Answer>, result: Answer) -> bool {
        self.known.remove(&key);
        let (now, kind) = (Instant::now(), (key.0.clone(), key.1));
        if matches!(result, Err(CallError::Deadline(_))) {
            self.silent.insert(kind.clone(), now);
        }
        match to.send(result) {
            Ok(()) => return true,
            // The caches show it: a later write of the same object is another one.
            Err(Ok(())) => _ = self.sure.insert(kind, now),
            // Nobody has refused: it is tried again at once, with more time.
            Err(Err(CallError::Deadline(_))) => {}
            Err(Err(error)) => _ = self.known.insert(key, Call::Failed { at: now, error }),
        }
        false
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
        let is_sure = |action| making.is_slow_and_sure(&job(), action);
        for (answer, expected) in [(refused(), false), (Ok(()), true)] {
            make(&making, 20, answer).await.unwrap_err();
            assert!(!is_sure("ApplyService"), "it is under way");
            wakes.recv().await.unwrap();
            assert_eq!(is_sure("ApplyService"), expected);
            let _ = make(&making, 0, Ok(())).await;
        }
        assert!(!is_sure("CreateWorker"), "a quota may refuse these");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_made_slowly_and_is_gone_again_is_made_again() {
        let (making, mut wakes) = making();
        make(&making, 1, Ok(())).await.unwrap_err();
        wakes.recv().await.unwrap();
        let begun = Instant::now();
        let error = make(&making, 1, Ok(())).await.unwrap_err();
        assert!(matches!(error, CallError::Pending(_)), "{error}");
        wakes.recv().await.unwrap();
        assert!(begun.elapsed() >= Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn changes_have_more_time_once_one_of_their_kind_has_got_no_answer() {
        let (making, mut wakes) = making();
        let change = async |action, pod: &str| {
            let wake = ObjectRef::new("digits").within("ml");
            let what = Written::Pod(pod.to_owned());
            let slow = |deadline: Duration| async move {
                let webhook = sleep(Duration::from_secs(10));
                let answered = timeout(deadline, webhook).await;
                answered.map_err(|_| CallError::Deadline(deadline))
            };
            making.change(&job(), wake, (action, &what, 1), slow).await
        };
        let mut took = Vec::new();
        for (action, pod) in [
            ("IssueMembership", "digits-0"),
            ("IssueMembership", "digits-1"),
            ("DeletePod", "digits-0"),
        ] {
            let begun = Instant::now();
            let error = change(action, pod).await.unwrap_err();
            assert!(matches!(error, CallError::Pending(_)), "{error}");
            wakes.recv().await.unwrap();
            took.push(begun.elapsed().as_secs());
        }
        assert_eq!(took, [5, 10, 5]);
        let error = change("DeletePod", "digits-0").await.unwrap_err();
        let begins = matches!(error, CallError::Pending(time) if time == PATIENCE);
        assert!(begins, "it is tried again at once: {error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_whose_reconcile_is_gone_ends_with_the_operator() {
        let (making, mut wakes) = making();
        let reconcile = make(&making, 20, Ok(()));
        assert!(timeout(PATIENCE / 2, reconcile).await.is_err());
        making.stop();
        sleep(Duration::from_secs(30)).await;
        assert!(wakes.try_recv().is_err());
        assert!(make(&making, 0, Ok(())).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn of_many_writes_that_failed_together_one_is_told_and_then_all_are_tried_again() {
        let (making, mut wakes) = making();
        let change = async |pod: u32, seconds, answer| {
            let wake = ObjectRef::new("digits").within("ml");
            let what = Written::Pod(pod.to_string());
            let write = |_| async move {
                sleep(Duration::from_secs(seconds)).await;
                answer
            };
            let what = ("DeletePod", &what, 0);
            making.change(&job(), wake, what, write).await
        };
        for pod in 0..3 {
            change(pod, 5, refused()).await.unwrap_err();
        }
        for _ in 0..3 {
            wakes.recv().await.unwrap();
        }
        assert_eq!(change(1, 0, Ok(())).await.unwrap_err().code(), Some(403));
        for pod in 0..3 {
            assert!(change(pod, 0, Ok(())).await.is_ok(), "{pod}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_error_of_a_slow_change_is_not_that_of_another_one() {
        let (making, mut wakes) = making();
        let what = Written::Pod("digits-0".to_owned());
        let written = std::sync::Mutex::new(Vec::new());
        let change = async |generation, seconds| {
            let wake = ObjectRef::new("digits").within("ml");
            let write = |_| {
                written.lock().unwrap().push(generation);
                async move {
                    sleep(Duration::from_secs(seconds)).await;
                    if generation == 2 { refused() } else { Ok(()) }
                }
            };
            let what = ("IssueMembership", &what, generation);
            making.change(&job(), wake, what, write).await
        };
        change(2, 3).await.unwrap_err();
        wakes.recv().await.unwrap();
        // Nobody has asked for it.
        assert!(change(3, 0).await.is_ok());
        assert_eq!(*written.lock().unwrap(), [2, 3]);
    }
}
