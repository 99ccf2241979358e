//! A sample order in two levels. Consecutive samples of the files form blocks. The blocks are
//! permuted first; then all samples of a window of several blocks are permuted. A disk reads one
//! window at a time, so its reads are nearly sequential, and each sample still comes exactly once.

use serde::{Deserialize, Serialize};

use super::Feistel;
use crate::splitmix::finalize;

/// Sizes of the two levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Blocks {
    /// Number of consecutive samples in a block; 0 counts as 1.
    pub num_samples: u64,
    /// Number of blocks whose samples are mixed; 0 counts as 1.
    pub num_mixed: u64,
}

/// The two-level order. First the samples are lined up in the permuted order of the blocks; a
/// window is a range of that line. All blocks have the same size except the one with the last
/// samples, which can be anywhere in the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Windows {
    len: u64,
    seed: u64,
    epoch: u64,
    block: u64,
    /// Number of samples of a window that does not contain the short block.
    window: u64,
    blocks: Feistel,
    /// End of the short block in the line.
    short_end: u64,
    /// Number of samples that the short block lacks.
    missing: u64,
}

impl Windows {
    pub(super) fn new(len: u64, seed: u64, epoch: u64, blocks: Blocks) -> Self {
        let block = blocks.num_samples.clamp(1, len.max(1));
        let num_blocks = len.div_ceil(block);
        let num_mixed = blocks.num_mixed.clamp(1, num_blocks.max(1));
        let order = Feistel::new(num_blocks, seed, epoch);
        let missing = num_blocks * block - len;
        let short = num_blocks
            .checked_sub(1)
            .and_then(|last| order.index_of(last));
        Self {
            len,
            seed,
            epoch,
            block,
            window: block * num_mixed,
            blocks: order,
            short_end: short.map_or(0, |at| (at + 1) * block - missing),
            missing,
        }
    }

    pub(super) fn at(&self, place: u64) -> Option<u64> {
        if place >= self.len {
            return None;
        }
        let (number, start, end) = self.window_of(place);
        // The number of the window is a separate seed, different from those of epochs and blocks.
        let key = finalize(self.seed ^ finalize(!number));
        let mixed = Feistel::new(end - start, key, self.epoch).at(place - start)?;
        let in_line = self.padded(start + mixed);
        let block = self.blocks.at(in_line / self.block)?;
        Some(block * self.block + in_line % self.block)
    }

    /// Converts a place to one in a line in which the short block is as long as the others.
    const fn padded(&self, place: u64) -> u64 {
        if place < self.short_end {
            place
        } else {
            place + self.missing
        }
    }

    /// Converts a padded place at the start of a window to a place in the line.
    fn unpadded(&self, place: u64) -> u64 {
        if place < self.short_end + self.missing {
            place.min(self.short_end)
        } else {
            place - self.missing
        }
    }

    /// Returns the number of the window that contains a place, its first place, and the
    /// place after its last.
    fn window_of(&self, place: u64) -> (u64, u64, u64) {
        let number = self.padded(place) / self.window;
        let start = self.unpadded(number * self.window);
        let end = self.unpadded((number + 1) * self.window).min(self.len);
        (number, start, end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{ProptestConfig, prop_assert, prop_assert_eq, proptest};

    use super::Blocks;
    use crate::Permutation;

    fn order(len: u64, seed: u64, epoch: u64, blocks: Blocks) -> Vec<u64> {
        let order = Permutation::in_blocks(len, seed, epoch, blocks);
        (0..len).filter_map(|place| order.at(place)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn every_sample_comes_exactly_once(
            len in 1_u64..3_000, num_samples in 0_u64..200, num_mixed in 0_u64..20, seed: u64, epoch: u64
        ) {
            let mut samples = order(len, seed, epoch, Blocks { num_samples, num_mixed });
            samples.sort_unstable();
            prop_assert_eq!(samples, (0..len).collect::<Vec<_>>());
        }

        #[test]
        fn range_of_a_window_reads_at_most_three_windows_of_blocks(
            len in 1_u64..3_000, num_samples in 1_u64..100, num_mixed in 1_u64..10, seed: u64, start: u64
        ) {
            let samples = order(len, seed, 1, Blocks { num_samples, num_mixed });
            let start = usize::try_from(start % len).unwrap();
            let window = usize::try_from(num_samples * num_mixed).unwrap();
            let stretch = &samples[start..samples.len().min(start + window)];
            let blocks: std::collections::BTreeSet<_> =
                stretch.iter().map(|sample| sample / num_samples).collect();
            // Because of the short block, a range can reach into a third window by a part of one
            // block.
            prop_assert!(blocks.len() as u64 <= 3 * num_mixed);
        }
    }

    #[test]
    fn window_mixes_the_samples_of_its_blocks() {
        let blocks = Blocks {
            num_samples: 100,
            num_mixed: 4,
        };
        let samples = order(4_000, 5, 0, blocks);
        let changes = samples[..400]
            .windows(2)
            .filter(|pair| pair[0] / 100 != pair[1] / 100)
            .count();
        // In a uniform mix, 3 of 4 of the 399 pairs of neighbours are of different blocks.
        assert!((250..350).contains(&changes), "{changes}");
    }

    #[test]
    fn seed_and_epoch_change_blocks_and_mix() {
        let blocks = Blocks {
            num_samples: 10,
            num_mixed: 3,
        };
        let first = order(95, 1, 0, blocks);
        assert_eq!(first, order(95, 1, 0, blocks));
        assert_ne!(first, order(95, 1, 1, blocks));
        assert_ne!(first, order(95, 2, 0, blocks));
        assert_eq!(Permutation::in_blocks(95, 1, 0, blocks).at(95), None);
        assert_eq!(Permutation::in_blocks(0, 1, 0, blocks).at(0), None);
    }

    #[test]
    fn the_order_is_the_same_in_every_release() {
        let blocks = Blocks {
            num_samples: 3,
            num_mixed: 2,
        };
        assert_eq!(order(10, 1, 0, blocks), [5, 4, 3, 9, 2, 7, 8, 1, 0, 6]);
    }
}
