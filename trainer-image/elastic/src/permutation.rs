//! The order of the samples in one epoch: a pseudo-random permutation that any rank evaluates at
//! any index in constant memory, so that nobody holds or exchanges a shuffled list.
//!
//! A balanced Feistel network (Luby and Rackoff, 1988) permutes a domain of 4^k ≥ `len` elements;
//! walking its cycle until it is back inside `len` (Black and Rogaway, 2002) makes it a
//! permutation of exactly `len`. The domain is less than 4 times too large, so the walk is short.

pub mod blocks;

pub use blocks::Blocks;

use crate::splitmix::{INCREMENT, finalize as mix};
use blocks::Windows;

/// Rounds of the network. Four give a strong pseudo-random permutation; more mix small domains.
const NUM_ROUNDS: usize = 6;

/// Permutation of `0..len`, a function of (seed, epoch).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permutation {
    epoch: u64,
    levels: Levels,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Levels {
    /// Each sample is at its own place.
    None(u64),
    /// Any sample can come at any place.
    One(Feistel),
    /// Samples that lie together on the disk come in the same window of the order.
    Two(Windows),
}

impl Permutation {
    /// The order of `len` samples in `epoch`. `len` is at most 2^62.
    #[must_use]
    pub fn new(len: u64, seed: u64, epoch: u64) -> Self {
        Self {
            epoch,
            levels: Levels::One(Feistel::new(len, seed, epoch)),
        }
    }

    /// The same in two levels, so that disks read sequentially: see [`Blocks`]. `len` is at most 2^62.
    #[must_use]
    pub fn in_blocks(len: u64, seed: u64, epoch: u64, blocks: Blocks) -> Self {
        Self {
            epoch,
            levels: Levels::Two(Windows::new(len, seed, epoch, blocks)),
        }
    }

    /// The samples as they lie in the files, for an evaluation. `len` is their number.
    #[must_use]
    pub const fn in_order(len: u64) -> Self {
        Self {
            epoch: 0,
            levels: Levels::None(len),
        }
    }

    /// The epoch that the order is of.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The sample at a place of the order; `None` at or past the end.
    #[must_use]
    pub fn at(&self, place: u64) -> Option<u64> {
        match &self.levels {
            Levels::None(len) => (place < *len).then_some(place),
            Levels::One(order) => order.at(place),
            Levels::Two(order) => order.at(place),
        }
    }
}

/// A keyed permutation of `0..len` that can be evaluated in both directions.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Feistel {
    len: u64,
    half_bits: u32,
    round_keys: [u64; NUM_ROUNDS],
}

impl Feistel {
    fn new(len: u64, seed: u64, epoch: u64) -> Self {
        let bits = u64::BITS - len.saturating_sub(1).leading_zeros();
        let key = mix(seed ^ mix(epoch.wrapping_add(INCREMENT)));
        let mut round_keys = [0; NUM_ROUNDS];
        let mut state = key;
        for round_key in &mut round_keys {
            state = mix(state.wrapping_add(INCREMENT));
            *round_key = state;
        }
        Self {
            len,
            half_bits: bits.div_ceil(2).max(1),
            round_keys,
        }
    }

    /// The value at an index; `None` at or past the end.
    fn at(&self, index: u64) -> Option<u64> {
        if index >= self.len {
            return None;
        }
        let mut value = self.encrypt(index);
        while value >= self.len {
            value = self.encrypt(value);
        }
        Some(value)
    }

    /// The index of a value: `at` backwards.
    fn index_of(&self, value: u64) -> Option<u64> {
        if value >= self.len {
            return None;
        }
        let mut index = self.decrypt(value);
        while index >= self.len {
            index = self.decrypt(index);
        }
        Some(index)
    }

    /// One pass of the network over the power-of-four domain.
    fn encrypt(&self, value: u64) -> u64 {
        let mask = (1_u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for key in self.round_keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        (left << self.half_bits) | right
    }

    /// The pass backwards.
    fn decrypt(&self, value: u64) -> u64 {
        let mask = (1_u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for key in self.round_keys.iter().rev() {
            (left, right) = (right ^ (mix(left ^ key) & mask), left);
        }
        (left << self.half_bits) | right
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, prop_assert_eq, proptest};

    use super::*;

    fn order(len: u64, seed: u64, epoch: u64) -> Vec<u64> {
        let permutation = Permutation::new(len, seed, epoch);
        (0..len).filter_map(|index| permutation.at(index)).collect()
    }

    /// A training that is continued, and one in Python, has the same order: the numbers stand in
    /// `trainer-image/python/tests/test_units.py`, too.
    #[test]
    fn the_order_of_an_epoch_never_changes() {
        assert_eq!(order(10, 7, 0), [4, 3, 9, 7, 1, 0, 6, 2, 5, 8]);
        assert_eq!(order(10, 7, 1), [6, 1, 8, 0, 5, 4, 9, 3, 7, 2]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn the_index_of_a_value_is_where_the_value_is(len in 1_u64..5_000, seed: u64, index: u64) {
            let order = Feistel::new(len, seed, 3);
            let index = index % len;
            prop_assert_eq!(order.at(index).and_then(|value| order.index_of(value)), Some(index));
        }

        #[test]
        fn every_sample_comes_exactly_once(len in 1_u64..5_000, seed: u64, epoch: u64) {
            let mut samples = order(len, seed, epoch);
            samples.sort_unstable();
            prop_assert_eq!(samples, (0..len).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_end_is_none() {
        assert_eq!(Permutation::new(0, 1, 1).at(0), None);
        assert_eq!(Permutation::new(1, 1, 1).at(0), Some(0));
        assert_eq!(Permutation::new(1, 1, 1).at(1), None);
    }

    #[test]
    fn seed_and_epoch_each_change_the_order() {
        assert_ne!(order(100, 1, 0), order(100, 1, 1));
        assert_ne!(order(100, 1, 0), order(100, 2, 0));
        assert_eq!(order(100, 1, 0), order(100, 1, 0));
    }

    #[test]
    fn the_order_is_the_same_in_every_release() {
        assert_eq!(order(8, 1, 0), [0, 6, 2, 5, 3, 4, 1, 7]);
    }

    #[test]
    fn places_are_spread_evenly() {
        // Chi-squared of the first place over many seeds: 15 degrees of freedom, 0.1 % at 37.7.
        let mut counts = [0_u32; 16];
        for seed in 0..16_000 {
            let first = Permutation::new(16, seed, 0).at(0).unwrap();
            counts[usize::try_from(first).unwrap()] += 1;
        }
        let chi: f64 = counts
            .iter()
            .map(|&count| (f64::from(count) - 1_000.0).powi(2) / 1_000.0)
            .sum();
        assert!(chi < 37.7, "{chi} {counts:?}");
    }

    #[test]
    fn a_large_domain_is_as_cheap_as_a_small_one() {
        let permutation = Permutation::new(1 << 40, 3, 4);
        let there = permutation.at(123_456_789_012).unwrap();
        assert!(there < 1 << 40);
    }
}
