//! How long ranks wait at a store for the other ranks of their generation. Those may still train in
//! the previous generation, which they can leave only at the end of a step or of an evaluation. So
//! its longest step, and the time that an evaluation may take, are published in the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use roundhouse_elastic::StepEstimate;

use super::Store;
use crate::failure::Failure;

/// Key of the longest step, in milliseconds, of the group in which the store's host trains. It
/// belongs to no generation.
const LONGEST_STEP: &str = "longest-step-ms";
/// Key of the time, in milliseconds, that the group may need for what it does beside steps; 0 in a
/// step.
const BESIDE_STEPS: &str = "beside-steps-ms";

/// What a store's host has published.
#[derive(Debug, Default)]
pub(super) struct Published {
    longest_step: AtomicU64,
    beside_steps: AtomicU64,
}

impl Published {
    /// Publishes the longest step to the ranks that wait at `store`. A request is sent only for a
    /// step that is longer by a quarter or shorter than half. If it fails, the ranks wait as long
    /// as for the last one.
    pub(super) fn longest_step(&self, store: &impl Store, longest: Duration) {
        publish(store, LONGEST_STEP, &self.longest_step, longest);
    }

    /// Publishes in the same way how long an evaluation, or work of one rank, may take.
    pub(super) fn beside_steps(&self, store: &impl Store, most: Duration) {
        publish(store, BESIDE_STEPS, &self.beside_steps, most);
    }
}

fn publish(store: &impl Store, key: &str, published: &AtomicU64, time: Duration) {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let before = published.load(Ordering::Relaxed);
    let change = millis.wrapping_sub(before).cast_signed();
    if is_worth_publishing(before, millis) && store.add(key, change).is_ok() {
        published.store(millis, Ordering::Relaxed);
    }
}

/// Whether a new time is worth a request. Times below a second are not: the timeout is
/// minutes.
const fn is_worth_publishing(published: u64, millis: u64) -> bool {
    const SHORT: u64 = 1_000;
    if millis < SHORT {
        return published >= SHORT;
    }
    millis > published + published / 4 || millis < published / 2
}

/// The timeout of one rank. Its deadline moves as the published times grow.
#[derive(Clone, Debug)]
pub(super) struct ArrivalTimeout {
    since: Instant,
    /// The longest known step, in milliseconds.
    longest_step: Arc<AtomicU64>,
    /// The longest known time beside steps, in milliseconds.
    beside_steps: Arc<AtomicU64>,
}

impl ArrivalTimeout {
    /// Starts the timeout without known times.
    pub(super) fn begin() -> Self {
        Self {
            since: Instant::now(),
            longest_step: Arc::default(),
            beside_steps: Arc::default(),
        }
    }

    /// Reads the published times. Returns whether there is time left.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] if the store is lost.
    pub(super) fn learn(&self, store: &impl Store) -> Result<bool, Failure> {
        for (key, known) in [
            (LONGEST_STEP, &self.longest_step),
            (BESIDE_STEPS, &self.beside_steps),
        ] {
            let millis = u64::try_from(store.add(key, 0)?).unwrap_or(0);
            known.fetch_max(millis, Ordering::Relaxed);
        }
        Ok(!self.is_over())
    }

    pub(super) fn is_over(&self) -> bool {
        Instant::now() >= self.deadline()
    }

    pub(super) fn deadline(&self) -> Instant {
        self.since + self.span()
    }

    /// The timeout in seconds, for error messages.
    pub(super) fn seconds(&self) -> u64 {
        self.span().as_secs()
    }

    fn span(&self) -> Duration {
        let time = |millis: &AtomicU64| Duration::from_millis(millis.load(Ordering::Relaxed));
        StepEstimate::store_timeout(time(&self.longest_step)) + time(&self.beside_steps)
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::Memory;
    use super::*;

    #[test]
    fn waiting_ranks_learn_step_time_of_the_host() {
        let network = Memory::default();
        let (host, guest) = (network.serve(1), network.serve(1));
        let (published, waits) = (Published::default(), ArrivalTimeout::begin());
        assert!(waits.learn(&guest).unwrap());
        assert_eq!(waits.seconds(), 120);
        for (step, expected) in [(60, 480), (70, 480), (90, 660), (8, 660)] {
            published.longest_step(&host, Duration::from_secs(step));
            assert!(waits.learn(&guest).unwrap());
            assert_eq!(waits.seconds(), expected, "steps of {step} s");
        }
        // A rank that comes now reads the current, shorter step time.
        let newcomer = ArrivalTimeout::begin();
        assert!(newcomer.learn(&guest).unwrap());
        assert_eq!(newcomer.seconds(), 168);
    }

    #[test]
    fn waiting_ranks_learn_how_long_an_evaluation_may_take() {
        let network = Memory::default();
        let (host, guest) = (network.serve(1), network.serve(1));
        let (published, waits) = (Published::default(), ArrivalTimeout::begin());
        published.beside_steps(&host, Duration::from_secs(1_800));
        assert!(waits.learn(&guest).unwrap());
        assert_eq!(waits.seconds(), 1_920);
        // The group makes steps again.
        published.beside_steps(&host, Duration::ZERO);
        let newcomer = ArrivalTimeout::begin();
        assert!(newcomer.learn(&guest).unwrap());
        assert_eq!(newcomer.seconds(), 120);
    }

    #[test]
    fn small_timeout_changes_are_not_published() {
        for (published, millis, expected) in [
            (0, 5, false),
            (0, 999, false),
            (0, 1_000, true),
            (8_000, 9_000, false),
            (8_000, 11_000, true),
            (8_000, 5_000, false),
            (8_000, 3_000, true),
            (8_000, 10, true),
            (10, 8, false),
        ] {
            assert_eq!(
                is_worth_publishing(published, millis),
                expected,
                "{published} ms, then {millis} ms"
            );
        }
    }
}
