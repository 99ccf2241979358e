//! Random numbers of one sample in one epoch. They depend only on (seed, epoch, sample), so every
//! rank, thread and process draws the same numbers.

use roundhouse_elastic::splitmix::{INCREMENT, finalize as mix};

/// A stream of random numbers: `SplitMix64` (Steele, Lea and Flood, 2014).
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Returns the stream of a sample in an epoch.
    #[must_use]
    pub const fn new(seed: u64, epoch: u64, sample: u64) -> Self {
        let seed = mix(seed.wrapping_add(INCREMENT));
        let epoch = mix(seed ^ epoch.wrapping_add(INCREMENT));
        Self {
            state: mix(epoch ^ sample.wrapping_add(INCREMENT)),
        }
    }

    /// Draws 64 random bits.
    pub const fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(INCREMENT);
        mix(self.state)
    }

    /// Draws a number from 0 to below 1, a multiple of 2^-53.
    pub fn fraction(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Draws a number from `low` to below `high`.
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.fraction()
    }

    /// Draws an integer below `end`; 0 if `end` is 0. The bias is below `end` / 2^64.
    pub fn below(&mut self, end: u64) -> u64 {
        let product = u128::from(self.bits()) * u128::from(end);
        (product >> 64) as u64
    }

    /// Draws true or false with equal probability.
    pub const fn coin(&mut self) -> bool {
        self.bits() >> 63 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seed_epoch_and_sample_each_change_the_stream() {
        let first = |seed, epoch, sample| Random::new(seed, epoch, sample).bits();
        let all = [
            first(1, 2, 3),
            first(2, 2, 3),
            first(1, 3, 3),
            first(1, 2, 4),
            first(2, 1, 3),
            first(3, 2, 1),
        ];
        let different: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len());
        assert_eq!(first(1, 2, 3), all[0]);
    }

    #[test]
    fn numbers_below_a_limit_are_uniform() {
        // Chi-squared with 9 degrees of freedom: 27.9 at 0.1 %.
        let mut counts = [0_u32; 10];
        for sample in 0..10_000 {
            counts[usize::try_from(Random::new(7, 0, sample).below(10)).unwrap()] += 1;
        }
        let chi: f64 = counts
            .iter()
            .map(|&count| (f64::from(count) - 1_000.0).powi(2) / 1_000.0)
            .sum();
        assert!(chi < 27.9, "{chi} {counts:?}");
    }
}
