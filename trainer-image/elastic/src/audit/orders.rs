//! Checks that the order of an epoch contains no sample twice.

use std::collections::HashSet;

use super::Finding;
use crate::ledger::LedgerIdentity;

/// Maximum memory of a check, enough for one bit for each of eight billion samples.
pub(super) const MAX_BYTES: u64 = 1 << 30;
/// Memory of one sample in a set.
const BYTES_PER_SAMPLE: u64 = 16;

/// Checks the first places of an epoch. The memory grows with the number of used places, not with
/// the length of the data, which may be huge. If more than `max_bytes` would be needed, the check
/// makes several passes over the places, each for another part of the samples.
pub(super) fn check(
    identity: &LedgerIdentity,
    epoch: u64,
    num_places: u64,
    max_bytes: u64,
) -> Result<(), Finding> {
    let of_set = num_places.saturating_mul(BYTES_PER_SAMPLE);
    let of_bits = identity.num_samples.div_ceil(8);
    let num_parts = of_set.min(of_bits).div_ceil(max_bytes).max(1);
    let order = identity.order(epoch);
    for part in 0..num_parts {
        let mut used = if of_set < of_bits {
            Used::Set(HashSet::new())
        } else {
            Used::bits(identity.num_samples.div_ceil(num_parts))
        };
        for place in 0..num_places {
            let sample = order.at(place);
            let is_new = sample.is_some_and(|sample| {
                sample % num_parts != part || used.insert(sample / num_parts)
            });
            if !is_new {
                return Err(Finding::NoPermutation { epoch, place });
            }
        }
    }
    Ok(())
}

/// The samples that were used: a bit for each sample of the part, or a set if few were used.
enum Used {
    Bits(Vec<u64>),
    Set(HashSet<u64>),
}

impl Used {
    fn bits(num_samples: u64) -> Self {
        let size = usize::try_from(num_samples.div_ceil(64)).unwrap_or(usize::MAX);
        Self::Bits(vec![0; size])
    }

    /// Inserts a sample; returns false if it is out of bounds or already present.
    fn insert(&mut self, sample: u64) -> bool {
        match self {
            Self::Set(samples) => samples.insert(sample),
            Self::Bits(words) => {
                let word = usize::try_from(sample / 64).ok();
                let bit = 1 << (sample % 64);
                word.and_then(|word| words.get_mut(word))
                    .is_some_and(|word| std::mem::replace(word, *word | bit) & bit == 0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data_schedule::DataSchedule;

    #[test]
    fn epoch_is_checked_in_parts_that_fit_into_memory() {
        for (num_samples, num_places) in [(1_000, 1_000), (1_000_000, 1_000)] {
            let identity = LedgerIdentity::of(&DataSchedule::of_steps(num_samples, 10, 100), 7);
            for max_bytes in [40, 100, MAX_BYTES] {
                assert_eq!(check(&identity, 0, num_places, max_bytes), Ok(()));
                let past_the_end = Finding::NoPermutation {
                    epoch: 0,
                    place: num_samples,
                };
                if num_samples == num_places {
                    let found = check(&identity, 0, num_places + 1, max_bytes);
                    assert_eq!(found, Err(past_the_end));
                }
            }
        }
    }

    #[test]
    fn used_sample_is_not_inserted_again() {
        for mut used in [Used::bits(130), Used::Set(HashSet::new())] {
            for sample in [0, 63, 64, 129] {
                assert!(used.insert(sample) && !used.insert(sample));
            }
        }
    }
}
