//! The order of the samples in one epoch: a pseudo-random permutation that any rank can evaluate at
//! any index in constant memory. So no rank stores or sends a shuffled list.
//!
//! A balanced Feistel network (Luby and Rackoff, 1988) permutes a domain of 4^k ≥ `len` elements.
//! Following its cycle until the value is below `len` (Black and Rogaway, 2002) turns it into a
//! permutation of exactly `len` elements. The domain is less than 4 times too large, so few
//! iterations are needed.

pub mod blocks;

pub use blocks::Blocks;

use crate::splitmix::{INCREMENT, finalize as mix};
use blocks::Windows;

/// Rounds of the network. Four rounds give a strong pseudo-random permutation; more rounds
/// mix small domains better.
const NUM_ROUNDS: usize = 6;

/// A permutation of `0..len` that depends only on (seed, epoch).
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
    /// Samples that are adjacent on the disk come in the same window of the order.
    Two(Windows),
}

impl Permutation {
    /// Returns the order of `len` samples in `epoch`. `len` is at most 2^62.
    #[must_use]
    pub fn new(len: u64, seed: u64, epoch: u64) -> Self {
        Self {
            epoch,
            levels: Levels::One(Feistel::new(len, seed, epoch)),
        }
    }

    /// Returns an order in two levels, which lets disks read sequentially: see [`Blocks`]. `len`
    /// is at most 2^62.
    #[must_use]
    pub fn in_blocks(len: u64, seed: u64, epoch: u64, blocks: Blocks) -> Self {
        Self {
            epoch,
            levels: Levels::Two(Windows::new(len, seed, epoch, blocks)),
        }
    }

    /// Returns the order of the samples in the files, for an evaluation. `len` is their number.
    #[must_use]
    pub const fn in_order(len: u64) -> Self {
        Self {
            epoch: 0,
            levels: Levels::None(len),
        }
    }

    /// Epoch to which the order belongs.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the sample at a place of the order; `None` at or after the end.
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

    /// Returns the value at an index; `None` at or after the end.
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

    /// Returns the index of a value: the inverse of `at`.
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

    /// Applies the network once to a value of the power-of-four domain.
    fn encrypt(&self, value: u64) -> u64 {
        let mask = (1_u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for key in self.round_keys {
            (left, right) = (right, left ^ (mix(right ^ key) & mask));
        }
        (left << self.half_bits) | right
    }

    /// Applies the inverse of the network once.
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

    /// A resumed training and a training in Python must use the same order.
    /// `trainer-image/python/tests/test_sampler.py` contains the same numbers.
    #[test]
    fn order_of_an_epoch_never_changes() {
        assert_eq!(order(10, 7, 0), [4, 3, 9, 7, 1, 0, 6, 2, 5, 8]);
        assert_eq!(order(10, 7, 1), [6, 1, 8, 0, 5, 4, 9, 3, 7, 2]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn index_of_is_the_inverse_of_at(len in 1_u64..5_000, seed: u64, index: u64) {
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
    fn place_after_the_end_has_no_sample() {
        assert_eq!(Permutation::new(0, 1, 1).at(0), None);
        assert_eq!(Permutation::new(1, 1, 1).at(0), Some(0));
        assert_eq!(Permutation::new(1, 1, 1).at(1), None);
    }

    #[test]
    fn seed_and_epoch_change_the_order() {
        assert_ne!(order(100, 1, 0), order(100, 1, 1));
        assert_ne!(order(100, 1, 0), order(100, 2, 0));
        assert_eq!(order(100, 1, 0), order(100, 1, 0));
    }

    #[test]
    fn the_order_is_the_same_in_every_release() {
        assert_eq!(order(8, 1, 0), [0, 6, 2, 5, 3, 4, 1, 7]);
    }

    #[test]
    fn places_of_a_sample_are_uniform() {
        // Chi-squared test of the first place over many seeds: 15 degrees of freedom, 0.1 % at
        // 37.7.
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
    fn large_domain_is_as_cheap_as_a_small_one() {
        let permutation = Permutation::new(1 << 40, 3, 4);
        let there = permutation.at(123_456_789_012).unwrap();
        assert!(there < 1 << 40);
    }
}
