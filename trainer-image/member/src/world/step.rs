//! What a rank brings to the end of a step, and what the end of a step tells all ranks.

use std::time::Duration;

use roundhouse_elastic::Agreement;

use super::packing::Packing;
use super::saving::{Saving, SavingSum};

/// What one rank brings to a step's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankVote {
    /// Whether the gradients are finite; of the loss it is seen.
    pub finite: bool,
    /// Whether it was asked to leave.
    pub leaving: bool,
    /// The newest generation it has seen.
    pub newest_seen: u64,
    /// What it has to say about checkpoints and ledger.
    pub saving: Saving,
    /// What its step before took without its peers; zero if there was none in this generation.
    pub own_time: Duration,
}

/// What a step's end tells all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct StepOutcome {
    /// Sum over all samples of the step; NaN if that of a rank is not finite.
    pub loss_sum: f64,
    /// See [`Agreement`].
    pub agreement: Agreement,
    /// See [`SavingSum`].
    pub saving: SavingSum,
    /// [`RankVote::own_time`] of each rank.
    pub compute_seconds: Vec<f64>,
}

impl RankVote {
    /// How many numbers each rank tells the others at the end of a step.
    pub const NUM_NUMBERS: usize = 5 + Saving::NUM_NUMBERS;

    /// What this rank tells the others, for a way that keeps the numbers of the ranks apart; see
    /// [`StepOutcome::of_ranks`].
    #[must_use]
    pub fn to_numbers(&self, rank: u32, local_loss_sum: f64) -> [f64; Self::NUM_NUMBERS] {
        let Self {
            finite,
            leaving,
            newest_seen,
            saving,
            own_time,
        } = self;
        let flag = |flag: bool| f64::from(u8::from(flag));
        let mut numbers = [0.0; Self::NUM_NUMBERS];
        let (own, rest) = numbers.split_at_mut(Self::NUM_NUMBERS - Saving::NUM_NUMBERS);
        own.copy_from_slice(&[
            local_loss_sum,
            flag(*finite),
            flag(*leaving),
            *newest_seen as f64,
            own_time.as_secs_f64(),
        ]);
        rest.copy_from_slice(&saving.to_numbers(rank));
        numbers
    }
}

impl StepOutcome {
    /// The end of a step from the numbers of all ranks, in their order. `None` if they are not numbers of
    /// [`RankVote::to_numbers`].
    #[must_use]
    pub fn of_ranks(ranks: &[Vec<f64>]) -> Option<Self> {
        let size = u32::try_from(ranks.len()).ok()?;
        let mut sums = vec![0.0; Packing::new(0, size).num_numbers()];
        for (rank, numbers) in (0..size).zip(ranks) {
            let list = Packing::new(rank, size).spread(numbers.as_slice().try_into().ok()?);
            for (sum, number) in sums.iter_mut().zip(list) {
                *sum += number;
            }
        }
        Packing::new(0, size).unpack(&sums)
    }
}
