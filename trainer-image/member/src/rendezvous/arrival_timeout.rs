//! How long ranks wait at a store for the others of their generation. The others may still train in the generation before,
//! which they can leave only at the end of a step. So its longest step is written in the store, for the ranks that wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use roundhouse_elastic::StepEstimate;

use super::Store;
use crate::failure::Failure;

/// The longest step of the world that the store's host trains in, in milliseconds. It belongs to no generation.
const LONGEST_STEP: &str = "longest-step-ms";

/// What a store's host has told so far.
#[derive(Debug, Default)]
pub(super) struct PublishedStep {
    millis: AtomicU64,
}

impl PublishedStep {
    /// Tells the ranks that wait at `store`. Only a step that is longer by a quarter, or far shorter, is worth a request.
    /// Without an answer they wait as long as for the last one.
    pub(super) fn publish(&self, store: &impl Store, longest: Duration) {
        let millis = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
        let told = self.millis.load(Ordering::Relaxed);
        if is_worth_publishing(told, millis)
            && store
                .add(LONGEST_STEP, millis.wrapping_sub(told).cast_signed())
                .is_ok()
        {
            self.millis.store(millis, Ordering::Relaxed);
        }
    }
}

/// Steps below a second change nothing: patience is minutes.
const fn is_worth_publishing(told: u64, millis: u64) -> bool {
    const SHORT: u64 = 1_000;
    if millis < SHORT {
        return told >= SHORT;
    }
    millis > told + told / 4 || millis < told / 2
}

/// The patience of one rank, which moves its deadline while it learns.
#[derive(Clone, Debug)]
pub(super) struct ArrivalTimeout {
    since: Instant,
    /// The longest step that it knows of.
    millis: Arc<AtomicU64>,
}

impl ArrivalTimeout {
    /// From now on, knowing nothing.
    pub(super) fn begin() -> Self {
        Self {
            since: Instant::now(),
            millis: Arc::default(),
        }
    }

    /// Reads what the host tells; whether there is time left.
    ///
    /// # Errors
    /// The store is gone.
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

    /// For error messages.
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
        // Who comes now finds the shorter steps of today.
        let newcomer = ArrivalTimeout::begin();
        assert!(newcomer.learn(&guest).unwrap());
        assert_eq!(newcomer.seconds(), 168);
    }

    #[test]
    fn small_timeout_changes_are_not_published() {
        for (told, millis, expected) in [
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
                is_worth_publishing(told, millis),
                expected,
                "{told} ms, then {millis} ms"
            );
        }
    }
}
