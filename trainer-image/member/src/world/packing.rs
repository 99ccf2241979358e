//! The votes at the end of a step as one list of numbers, which is summed over the ranks element by
//! element.
//!
//! Counts are summed. Loss, newest generation and time have a slot for each rank, to which the
//! other ranks add 0, so the order of a sum changes no rounding:
//! ```text
//! 0           ranks whose loss is not finite
//! 1           ranks whose loss or gradient is not finite
//! 2           ranks that have dropped the step before
//! 3           ranks that were asked to leave
//! 4..11       checkpoints and ledger ([`Saving::to_numbers`])
//! 11..        the loss of each rank, then the newest generation that each has seen, then its own time in seconds
//! ```
//! The host fills the list in. With a commit on a device, it fills in all but the slots that only
//! the device knows: [`Packing::NUM_OF_DEVICE`] and [`Packing::place_of_loss`].

use roundhouse_elastic::Agreement;

use super::saving::{Saving, SavingSum};
use super::step::{RankVote, StepOutcome};
use super::whole;

const NO_LOSS: usize = 0;
const NOT_FINITE: usize = 1;
const DROPPED: usize = 2;
const LEAVING: usize = 3;
const SAVING: usize = 4;
const SLOTS: usize = SAVING + Saving::NUM_NUMBERS;
/// Number of slots of each rank.
const SLOTS_OF_RANK: usize = 3;

/// The positions of a rank's numbers in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    rank: usize,
    size: usize,
}

impl Packing {
    /// Number of counts at the start of the list that a device fills in: 1 for a rank whose loss is
    /// not finite, whose loss or gradient is not finite, and that has dropped the previous step;
    /// otherwise 0.
    pub const NUM_OF_DEVICE: usize = LEAVING;

    /// The packing of a rank among `size` ranks.
    #[must_use]
    pub const fn new(rank: u32, size: u32) -> Self {
        Self {
            rank: rank as usize,
            size: size as usize,
        }
    }

    /// Length of the list.
    #[must_use]
    pub const fn num_numbers(&self) -> usize {
        SLOTS + SLOTS_OF_RANK * self.size
    }

    /// Position of this rank's loss, which is 0 if it is not finite.
    #[must_use]
    pub const fn place_of_loss(&self) -> usize {
        SLOTS + self.rank
    }

    /// The list that this rank contributes to the sum. If a device fills in the rest, the loss is
    /// 0.
    #[must_use]
    pub fn pack(&self, own: &RankVote, local_loss_sum: f64) -> Vec<f64> {
        // Only rank 0 contributes the slots that one rank decides.
        let rank = u32::from(self.rank > 0);
        self.spread(&own.to_numbers(rank, local_loss_sum))
    }

    /// The list of a rank from its numbers ([`RankVote::to_numbers`]).
    pub(super) fn spread(&self, numbers: &[f64; RankVote::NUM_NUMBERS]) -> Vec<f64> {
        let [loss, finite, leaving, newest_seen, own_time, saving @ ..] = numbers;
        let count = |counts: bool| f64::from(u8::from(counts));
        let has_loss = loss.is_finite();
        let mut values = vec![0.0; self.num_numbers()];
        values[NO_LOSS] = count(!has_loss);
        values[NOT_FINITE] = count(!(*finite > 0.0 && has_loss));
        values[LEAVING] = *leaving;
        values[SAVING..SLOTS].copy_from_slice(saving);
        let slots = [if has_loss { *loss } else { 0.0 }, *newest_seen, *own_time];
        for (kind, value) in slots.into_iter().enumerate() {
            values[SLOTS + kind * self.size + self.rank] = value;
        }
        values
    }

    /// Reads the sums; `None` if they are of another number of ranks.
    #[must_use]
    pub fn unpack(&self, sums: &[f64]) -> Option<StepOutcome> {
        if sums.len() != self.num_numbers() {
            return None;
        }
        let slots = |kind: usize| {
            sums[SLOTS + kind * self.size..][..self.size]
                .iter()
                .copied()
        };
        let newest: Vec<u64> = slots(1).map(whole).collect();
        Some(StepOutcome {
            loss_sum: if whole(sums[NO_LOSS]) == 0 {
                // Sum in the order of the ranks, like [`StepOutcome::of_ranks`].
                slots(0).fold(0.0, |sum, loss| sum + loss)
            } else {
                f64::NAN
            },
            agreement: Agreement::of(&newest, whole(sums[NOT_FINITE]), whole(sums[LEAVING])),
            saving: SavingSum::of(&sums[SAVING..SLOTS]),
            compute_seconds: slots(2).collect(),
        })
    }

    /// Whether a rank has dropped the previous step, so that it has the weights of an earlier step.
    #[must_use]
    pub fn has_dropped(&self, sums: &[f64]) -> bool {
        sums.get(DROPPED).is_none_or(|sum| whole(*sum) > 0)
    }
}

#[cfg(test)]
mod tests;
