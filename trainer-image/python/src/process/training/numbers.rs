//! The numbers of the vote at the end of a step. This module packs the numbers that the host knows.
//! `roundhouse/step_numbers.py` fills in those that only the device knows, without waiting for the
//! device.
//!
//! After the list of [`Packing`] follow: 1 for each rank whose weight is invalid; the weight of the
//! losses; and for each rank a digest of its summed gradients. All ranks with the same shard must
//! have the same digest: a collective that was cut off may leave garbage on one rank while the
//! following sum is correct.

use roundhouse_member::Failure;
use roundhouse_member::group::Group;
use roundhouse_member::rank_mismatch::{RankMismatch, Subject};
use roundhouse_member::world::{Packing, RankVote, World, not_of_all_ranks};

/// The places of the numbers in the list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    packing: Packing,
    rank: usize,
    size: usize,
    num_shards: u32,
}

/// The result of the sums.
#[derive(Debug)]
pub(super) enum Read<'a> {
    /// The list of [`Packing`], and the weight of all losses; 0 if all samples have the same
    /// weight.
    Sums(&'a [f64], f64),
    /// The ranks have different gradients; the message names the ranks.
    Differ(String),
    /// The weight of a rank is invalid.
    NoWeight,
}

impl Layout {
    pub(super) fn of<G: Group>(world: &World<G>) -> Self {
        let (rank, size) = (world.rank(), world.size());
        Self {
            num_shards: world.num_shards(),
            packing: Packing::new(rank, size),
            rank: rank as usize,
            size: size as usize,
        }
    }

    /// The numbers that the host knows, with 0 at the places of the numbers that the device knows.
    pub(super) fn list(&self, vote: &RankVote) -> Vec<f64> {
        let mut numbers = self.packing.pack(vote, 0.0);
        numbers.resize(self.num_numbers(), 0.0);
        numbers
    }

    /// Places of the numbers that the device knows: flags for a loss that is not finite, for a loss
    /// or a norm that is not finite, and for an invalid weight; then the loss, the weight and the
    /// digest.
    pub(super) const fn places(&self) -> [usize; 6] {
        let others = self.packing.num_numbers();
        let loss = self.packing.place_of_loss();
        let digest = others + 2 + self.rank;
        [0, 1, others, loss, others + 1, digest]
    }

    /// # Errors
    /// [`Failure::PeerLost`] if the sums are not those of all ranks.
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
        Ok(words_of_difference(digests, self.num_shards)
            .map_or(Read::Sums(end, *weight), Read::Differ))
    }

    const fn num_numbers(&self) -> usize {
        self.packing.num_numbers() + 2 + self.size
    }
}

/// The message for different digests. `None` if all ranks have the same digest.
fn words_of_difference(digests: &[f64], num_shards: u32) -> Option<String> {
    let (_, mismatch) = RankMismatch::of_shards(digests, num_shards)?;
    Some(format!(
        "after their sum {}: a collective was cut off, or a device computes wrong",
        mismatch.words(Subject::Gradients)
    ))
}
