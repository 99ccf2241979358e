//! Runs calls that block and cannot be interrupted, each in its own thread, so that the caller can
//! stop waiting. An abandoned thread ends when its call returns, which may never happen.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use crate::failure::Failure;

/// Interval between two checks of whether the call is still worth waiting for.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

static NUM_ABANDONED: AtomicU64 = AtomicU64::new(0);
static OF_LIBRARY: OnceLock<fn() -> u64> = OnceLock::new();

/// Number of threads of this process that nothing waits for any more and that have not ended. Each
/// holds a connection.
#[must_use]
pub fn num_abandoned() -> u64 {
    let of_library = OF_LIBRARY.get().map_or(0, |count| count());
    NUM_ABANDONED.load(Ordering::Relaxed) + of_library
}

/// Adds the threads that the communication library has abandoned in collectives of aborted groups
/// to [`num_abandoned`]. Only the first call has an effect.
pub fn count_those_of_library(count: fn() -> u64) {
    OF_LIBRARY.get_or_init(|| count);
}

/// Result of waiting for a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited<T> {
    /// The value that the call returned.
    Returned(T),
    /// The call became pointless before it returned.
    Pointless,
    /// The call did not return by the deadline.
    TooLate,
}

/// The waiting caller, as seen by the call.
#[derive(Debug)]
pub struct Caller(Weak<()>);

impl Caller {
    /// Whether the caller still waits. If not, the call should stop.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.0.strong_count() > 0
    }
}

/// Runs `work` in a thread of this name and waits for it until a deadline or until `is_pointless`.
/// `deadline` is evaluated repeatedly, because the call can move it.
///
/// # Errors
/// [`Failure::Internal`] if the operating system refuses the thread or the call panics.
pub fn call<T: Send + 'static>(
    name: &str,
    deadline: impl Fn() -> Instant,
    mut is_pointless: impl FnMut() -> bool,
    work: impl FnOnce(&Caller) -> T + Send + 'static,
) -> Result<Waited<T>, Failure> {
    let waiting = Arc::new(());
    let caller = Caller(Arc::downgrade(&waiting));
    let (sender, returned) = channel();
    let (end, left) = counted();
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || {
            let _end = end;
            // The receiver is gone if the call has become pointless.
            let _ = sender.send(work(&caller));
        })
        .map_err(|error| Failure::Internal(format!("no thread for {name}: {error}")))?;
    loop {
        match returned.recv_timeout(POLL_INTERVAL) {
            Ok(value) => return Ok(Waited::Returned(value)),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Failure::Internal(format!("{name} panicked")));
            }
            Err(RecvTimeoutError::Timeout) if is_pointless() => {
                left.behind();
                return Ok(Waited::Pointless);
            }
            Err(RecvTimeoutError::Timeout) if Instant::now() >= deadline() => {
                left.behind();
                return Ok(Waited::TooLate);
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// Counts a thread if it is abandoned. The thread holds the first value and drops it when it ends;
/// the caller holds the second.
pub(crate) fn counted() -> (Ended, Left) {
    let is_first_gone = Arc::new(AtomicBool::new(false));
    (Ended(Arc::clone(&is_first_gone)), Left(is_first_gone))
}

/// Dropped when the thread ends. If the thread was abandoned, this reduces the count.
#[derive(Debug)]
pub(crate) struct Ended(Arc<AtomicBool>);

impl Drop for Ended {
    fn drop(&mut self) {
        if self.0.swap(true, Ordering::SeqCst) {
            NUM_ABANDONED.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Held by the caller. [`Self::behind`] counts the thread as abandoned unless it has ended.
#[derive(Debug)]
pub(crate) struct Left(Arc<AtomicBool>);

impl Left {
    pub(crate) fn behind(self) {
        // Count first, so that the number never falls below 0.
        NUM_ABANDONED.fetch_add(1, Ordering::Relaxed);
        if self.0.swap(true, Ordering::SeqCst) {
            NUM_ABANDONED.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn far() -> Instant {
        Instant::now() + Duration::from_mins(2)
    }

    fn at(deadline: Instant) -> impl Fn() -> Instant {
        move || deadline
    }

    #[test]
    fn value_in_time_is_returned() {
        let waited = call("test", at(far()), || false, Caller::waits).unwrap();
        assert_eq!(waited, Waited::Returned(true));
    }

    #[test]
    fn pointless_or_late_call_is_abandoned_and_can_notice() {
        for (deadline, is_pointless, expected) in [
            (far(), true, Waited::Pointless),
            (Instant::now(), false, Waited::TooLate),
        ] {
            let (sender, left) = channel();
            let work = move |caller: &Caller| {
                while caller.waits() {
                    std::thread::yield_now();
                }
                sender.send(()).unwrap();
            };
            assert_eq!(
                call("test", at(deadline), || is_pointless, work).unwrap(),
                expected
            );
            left.recv_timeout(Duration::from_mins(1)).unwrap();
        }
    }

    #[test]
    fn moved_deadline_counts() {
        let began = Instant::now();
        let is_moved = Arc::new(AtomicBool::new(false));
        let moved = Arc::clone(&is_moved);
        let work = move |caller: &Caller| {
            moved.store(true, Ordering::Relaxed);
            while caller.waits() {
                std::thread::yield_now();
            }
        };
        // The deadline is in the past as soon as the call has moved it.
        let deadline = || {
            let so_far = is_moved.load(Ordering::Relaxed);
            if so_far { began } else { far() }
        };
        let waited = call("test", deadline, || false, work).unwrap();
        assert_eq!(waited, Waited::TooLate);
    }

    #[test]
    fn abandoned_thread_is_counted_until_it_ends() {
        let (release, blocked) = channel::<()>();
        let work = move |_: &Caller| blocked.recv();
        let before = num_abandoned();
        let waited = call("test", at(Instant::now()), || false, work).unwrap();
        assert_eq!(waited, Waited::TooLate);
        // Other tests abandon threads too; those end by themselves.
        assert!(num_abandoned() > 0, "{before}");
        drop(release);
        let deadline = far();
        while num_abandoned() > 0 {
            assert!(Instant::now() < deadline, "it is still counted");
            std::thread::yield_now();
        }
    }

    #[test]
    fn panic_in_call_is_internal_failure() {
        let panics = |_: &Caller| -> () { panic!("by the test") };
        let failure = call("test", at(far()), || false, panics).unwrap_err();
        assert!(matches!(failure, Failure::Internal(_)), "{failure}");
    }
}
