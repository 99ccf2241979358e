//! How long ranks wait at a store for the other ranks of their generation. Those may still train in
//! the previous generation, which they can leave only at the end of a step. So its longest step is
//! published in the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use roundhouse_elastic::StepEstimate;

use super::Store;
use crate::failure::Failure;

/// Key of the longest step, in milliseconds, of the group in which the store's host trains. It
/// belongs to no generation.
const LONGEST_STEP: &str = "longest-step-ms";

/// The step time that a store's host has published.
#[derive(Debug, Default)]
pub(super) struct PublishedStep {
    millis: AtomicU64,
}

impl PublishedStep {
    /// Publishes the step time to the ranks that wait at `store`. A request is sent only for a step
    /// that is longer by a quarter or shorter than half. If it fails, the ranks wait as long as for
    /// the last one.
    pub(super) fn publish(&self, store: &impl Store, longest: Duration) {
        let millis = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
        let published = self.millis.load(Ordering::Relaxed);
        if is_worth_publishing(published, millis)
            && store
                .add(LONGEST_STEP, millis.wrapping_sub(published).cast_signed())
                .is_ok()
        {
            self.millis.store(millis, Ordering::Relaxed);
        }
    }
}

/// Whether a new step time is worth a request. Steps below a second are not: the timeout is
/// minutes.
const fn is_worth_publishing(published: u64, millis: u64) -> bool {
    const SHORT: u64 = 1_000;
    if millis < SHORT {
        return published >= SHORT;
    }
    millis > published + published / 4 || millis < published / 2
}

/// The timeout of one rank. Its deadline moves as the published step time grows.
#[derive(Clone, Debug)]
pub(super) struct ArrivalTimeout {
    since: Instant,
    /// The longest known step.
    millis: Arc<AtomicU64>,
}

impl ArrivalTimeout {
    /// Starts the timeout without a known step time.
    pub(super) fn begin() -> Self {
        Self {
            since: Instant::now(),
            millis: Arc::default(),
        }
    }

    /// Reads the published step time. Returns whether there is time left.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] if the store is lost.
    pub(super) fn learn(&self, store: &impl Store) -> Result<bool, Failure> {
        let millis = store.add(LONGEST_STEP, 0)?;
        self.millis
            .fetch_max(u64::try_from(millis).unwrap_or(0), Ordering::Relaxed);
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
        StepEstimate::store_timeout(Duration::from_millis(self.millis.load(Ordering::Relaxed)))
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
        let (published, waits) = (PublishedStep::default(), ArrivalTimeout::begin());
        assert!(waits.learn(&guest).unwrap());
        assert_eq!(waits.seconds(), 120);
        for (step, expected) in [(60, 480), (70, 480), (90, 660), (8, 660)] {
            published.publish(&host, Duration::from_secs(step));
            assert!(waits.learn(&guest).unwrap());
            assert_eq!(waits.seconds(), expected, "steps of {step} s");
        }
        // A rank that comes now reads the current, shorter step time.
        let newcomer = ArrivalTimeout::begin();
        assert!(newcomer.learn(&guest).unwrap());
        assert_eq!(newcomer.seconds(), 168);
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
