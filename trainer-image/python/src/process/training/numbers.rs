//! The numbers that end a step. What the host knows is packed here; what only the device knows is filled in by
//! `roundhouse/step_numbers.py`, without a wait for the device.
//!
//! After the list of [`Packing`] come: 1 for each rank whose weight is no number of at least 0; the weight of the losses; and for
//! each rank a digest of the gradients that it has after their sum. All must have the same ones: a collective that was cut off
//! may leave garbage on one rank while the sum that follows it is right.

use roundhouse_member::Failure;
use roundhouse_member::rank_mismatch::{RankMismatch, Subject};
use roundhouse_member::world::{Packing, RankVote, not_of_all_ranks};

/// Where they lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    packing: Packing,
    rank: usize,
    size: usize,
}

/// What the sums say.
#[derive(Debug)]
pub(super) enum Read<'a> {
    /// The list of [`Packing`], and the weight of all losses; 0 if each sample weighs the same.
    Sums(&'a [f64], f64),
    /// The ranks do not have the same gradients, in words.
    Differ(String),
    /// A rank has an invalid weight.
    NoWeight,
}

impl Layout {
    pub(super) const fn new(rank: u32, size: u32) -> Self {
        Self {
            packing: Packing::new(rank, size),
            rank: rank as usize,
            size: size as usize,
        }
    }

    /// What the host knows; 0 at the places of what the device knows.
    pub(super) fn list(&self, vote: &RankVote) -> Vec<f64> {
        let mut numbers = self.packing.pack(vote, 0.0);
        numbers.resize(self.num_numbers(), 0.0);
        numbers
    }

    /// Places of what the device knows: flags for a loss that is not finite, for a loss or a norm that is not finite, and for an
    /// invalid weight; then the loss, the weight and the digest.
    pub(super) const fn places(&self) -> [usize; 6] {
        let others = self.packing.num_numbers();
        let loss = self.packing.place_of_loss();
        let digest = others + 2 + self.rank;
        [0, 1, others, loss, others + 1, digest]
    }

    /// # Errors
    /// [`Failure::PeerLost`] if they are not those of all ranks.
    pub(super) fn read<'a>(&self, sums: &'a [f64]) -> Result<Read<'a>, Failure> {
        if sums.len() != self.num_numbers() {
            return Err(not_of_all_ranks());
        }
        let (end, others) = sums.split_at(self.packing.num_numbers());
        let [num_wrong, weight, digests @ ..] = others else {
            return Err(not_of_all_ranks());
        };
        if *num_wrong > 0.5 {
            return Ok(Read::NoWeight);
        }
        Ok(words_of_difference(digests).map_or(Read::Sums(end, *weight), Read::Differ))
    }

    const fn num_numbers(&self) -> usize {
        self.packing.num_numbers() + 2 + self.size
    }
}

/// `None`: all ranks have the same digest.
fn words_of_difference(digests: &[f64]) -> Option<String> {
    let mismatch = RankMismatch::of(digests)?;
    Some(format!(
        "after their sum {}: a collective was cut off, or a device computes wrong",
        mismatch.words(Subject::Gradients)
    ))
}
