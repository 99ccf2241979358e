//! Chooses the tokens that a masked language model must predict: a pure function of the seed, the
//! epoch and the sample, without libtorch.
//!
//! The data path calls [`Masking::mask`] for each sample, so the masks do not depend on the rank
//! that has the sample. All sequences of one length have the same number of masked places. So all
//! samples have the same weight in the loss, and the loss does not depend on how samples are
//! divided among ranks and passes.

use crate::loss::IGNORED;
use crate::random::mix;
use roundhouse_elastic::splitmix::INCREMENT;

mod source;

pub use source::MaskedSource;

/// Number of masked places of a sequence: 15 %, rounded, and at least 1 (Devlin et al. 2018).
#[must_use]
pub const fn num_masked(length: i64) -> i64 {
    let rounded = (length * 15 + 50) / 100;
    if rounded < 1 { 1 } else { rounded }
}

/// The tokens that masking inserts and those that it avoids.
#[derive(Clone, Copy, Debug)]
pub struct Masking<'a> {
    /// The mask token, such as 103 (`[MASK]`) in `bert-base-uncased`.
    pub mask_token: u32,
    /// Number of different tokens, more than 0.
    pub vocabulary: u32,
    /// Tokens that are never masked, such as `[CLS]` and `[SEP]`.
    pub special: &'a [u32],
}

/// Identifies a sample within a training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// Seed of the training (`trainer.seed`).
    pub seed: u64,
    /// The epoch; a sample has another mask in each epoch.
    pub epoch: u64,
    /// Index of the sample in the data, not its place in an epoch's order.
    pub sample: u64,
}

/// A masked sequence and its targets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Masked {
    /// Inputs of the model, with masked tokens.
    pub inputs: Vec<i64>,
    /// The original tokens of masked places; -100 elsewhere.
    pub targets: Vec<i64>,
}

impl Masking<'_> {
    /// Chooses [`num_masked`] places, or all places without a special token if they are fewer. Of
    /// the chosen tokens 80 % become the mask token, 10 % become a random token, and 10 % stay.
    #[must_use]
    pub fn mask(&self, tokens: &[u32], draw: Draw) -> Masked {
        let mut random = Random::new(draw);
        let mut places: Vec<usize> = (0..tokens.len())
            .filter(|&place| !self.special.contains(&tokens[place]))
            .collect();
        let mut masked = Masked {
            inputs: tokens.iter().copied().map(i64::from).collect(),
            targets: vec![IGNORED; tokens.len()],
        };
        let wanted = num_masked(i64::try_from(tokens.len()).unwrap_or(i64::MAX));
        let num_places = places.len().min(usize::try_from(wanted).unwrap_or(0));
        for drawn in 0..num_places {
            // The first steps of a Fisher-Yates shuffle.
            let other = drawn + random.below(places.len() - drawn);
            places.swap(drawn, other);
            let place = places[drawn];
            masked.targets[place] = i64::from(tokens[place]);
            masked.inputs[place] = match random.below(10) {
                0..8 => i64::from(self.mask_token),
                8 => i64::try_from(random.below(self.vocabulary as usize)).unwrap_or(0),
                _ => i64::from(tokens[place]),
            };
        }
        masked
    }
}

/// The random numbers of one sample.
struct Random {
    state: u64,
}

impl Random {
    const fn new(
        Draw {
            seed,
            epoch,
            sample,
        }: Draw,
    ) -> Self {
        Self {
            state: mix(mix(mix(seed).wrapping_add(epoch)).wrapping_add(sample)),
        }
    }

    /// A random number below a bound, by multiplication (Lemire 2019); the bias is below bound /
    /// 2⁶⁴.
    fn below(&mut self, bound: usize) -> usize {
        self.state = self.state.wrapping_add(INCREMENT);
        let product = u128::from(mix(self.state)) * bound as u128;
        usize::try_from(product >> 64).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MASKING: Masking<'_> = Masking {
        mask_token: 3,
        vocabulary: 1000,
        special: &[1, 2],
    };

    fn draw(epoch: u64, sample: u64) -> Draw {
        Draw {
            seed: 7,
            epoch,
            sample,
        }
    }

    #[test]
    fn mask_covers_15_percent_and_at_least_one_token() {
        let lengths = [1, 3, 10, 20, 128, 512];
        assert_eq!(lengths.map(num_masked), [1, 1, 2, 3, 19, 77]);
    }

    #[test]
    fn targets_have_a_fixed_number_and_are_never_special() {
        let tokens: Vec<u32> = [1].into_iter().chain(100..138).chain([2]).collect();
        for sample in 0..200 {
            let masked = MASKING.mask(&tokens, draw(0, sample));
            let places: Vec<usize> = (0..40).filter(|&p| masked.targets[p] != IGNORED).collect();
            assert_eq!(places.len(), 6);
            for (place, token) in tokens.iter().copied().map(i64::from).enumerate() {
                if places.contains(&place) {
                    assert_eq!(masked.targets[place], token);
                    assert!(place != 0 && place != 39);
                } else {
                    assert_eq!(masked.inputs[place], token);
                }
            }
        }
    }

    #[test]
    fn masked_tokens_are_80_hidden_10_random_10_unchanged() {
        let tokens: Vec<u32> = (100..200).collect();
        let (mut hidden, mut stayed, mut num) = (0, 0, 0);
        for sample in 0..1000 {
            let masked = MASKING.mask(&tokens, draw(0, sample));
            for (input, target) in masked.inputs.iter().zip(&masked.targets) {
                if *target != IGNORED {
                    num += 1;
                    hidden += i32::from(*input == 3);
                    stayed += i32::from(input == target);
                }
            }
        }
        assert_eq!(num, 15_000);
        assert!((11_700..12_300).contains(&hidden), "{hidden}");
        assert!((1_350..1_650).contains(&stayed), "{stayed}");
    }

    #[test]
    fn mask_is_a_function_of_seed_epoch_and_sample() {
        let tokens: Vec<u32> = (100..200).collect();
        let mask = |epoch, sample| MASKING.mask(&tokens, draw(epoch, sample));
        assert_eq!(mask(1, 5), mask(1, 5));
        assert_ne!(mask(1, 5), mask(2, 5));
        assert_ne!(mask(1, 5), mask(1, 6));
        let other = Draw {
            seed: 8,
            ..draw(1, 5)
        };
        assert_ne!(mask(1, 5), MASKING.mask(&tokens, other));
    }

    #[test]
    fn short_sequences_mask_all_ordinary_tokens() {
        let masked = MASKING.mask(&[1, 2, 1, 2, 1, 2, 1, 2, 1, 9], draw(0, 0));
        assert_eq!(masked.targets.iter().filter(|t| **t != IGNORED).count(), 1);
    }
}
