//! The end of a step as one list of numbers, which is summed over the ranks element by element.
//!
//! Counts are summed. Loss, newest generation and time have a slot for each rank, to which the other ranks add 0, so
//! no rounding depends on the order of a sum:
//! ```text
//! 0           ranks whose loss is not finite
//! 1           ranks whose loss or gradient is not finite
//! 2           ranks that have dropped the step before
//! 3           ranks that were asked to leave
//! 4..11       checkpoints and ledger ([`Saving::to_numbers`])
//! 11..        the loss of each rank, then the newest generation that each has seen, then its own time in seconds
//! ```
//! The host fills the list in, or, where it is to be filled in on a device, all but what only the device knows:
//! [`Packing::NUM_OF_DEVICE`] and [`Packing::place_of_loss`].

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
/// How many slots each rank has.
const SLOTS_OF_RANK: usize = 3;

/// How the numbers of a rank lie in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    rank: usize,
    size: usize,
}

impl Packing {
    /// So many numbers at the beginning of the list are counts that a device fills in: 1 on a rank whose loss is not
    /// finite, whose loss or gradient is not finite, and that has dropped the step before; else 0.
    pub const NUM_OF_DEVICE: usize = LEAVING;

    /// Of a rank of a world of `size` ranks.
    #[must_use]
    pub const fn new(rank: u32, size: u32) -> Self {
        Self {
            rank: rank as usize,
            size: size as usize,
        }
    }

    /// How many numbers the list has.
    #[must_use]
    pub const fn num_numbers(&self) -> usize {
        SLOTS + SLOTS_OF_RANK * self.size
    }

    /// Where this rank's loss lies, which is 0 if it is not finite.
    #[must_use]
    pub const fn place_of_loss(&self) -> usize {
        SLOTS + self.rank
    }

    /// What this rank adds to the sum. A list that a device keeps filling in has a loss of 0.
    #[must_use]
    pub fn pack(&self, own: &RankVote, local_loss_sum: f64) -> Vec<f64> {
        // Rank 0 alone has more to say than the others.
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

    /// What the sums say; `None` if they are of another world.
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
                // In the order of the ranks, as where the numbers of the ranks are kept apart.
                slots(0).fold(0.0, |sum, loss| sum + loss)
            } else {
                f64::NAN
            },
            agreement: Agreement::of(&newest, whole(sums[NOT_FINITE]), whole(sums[LEAVING])),
            saving: SavingSum::of(&sums[SAVING..SLOTS]),
            compute_seconds: slots(2).collect(),
        })
    }

    /// Whether a rank has dropped the step before, so that its weights are those of an earlier step.
    #[must_use]
    pub fn has_dropped(&self, sums: &[f64]) -> bool {
        sums.get(DROPPED).is_none_or(|sum| whole(*sum) > 0)
    }
}

#[cfg(test)]
mod tests;
