//! The vote of a rank at the end of a step, and the outcome for all ranks.

use std::time::Duration;

use roundhouse_elastic::Agreement;

use super::packing::Packing;
use super::saving::{Saving, SavingSum};

/// The vote of one rank at the end of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankVote {
    /// Whether the gradients are finite. The loss is checked separately.
    pub finite: bool,
    /// Whether the rank was asked to leave.
    pub leaving: bool,
    /// The newest generation that the rank is ready for.
    pub newest_seen: u64,
    /// Progress of checkpoints and ledger.
    pub saving: Saving,
    /// Duration of its previous step without waits for peers; zero if there was none in this
    /// generation.
    pub own_time: Duration,
}

/// The outcome of a step on all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct StepOutcome {
    /// Sum of the loss over all samples of the step; NaN if a rank's loss is not finite.
    pub loss_sum: f64,
    pub agreement: Agreement,
    pub saving: SavingSum,
    /// [`RankVote::own_time`] of each rank in seconds.
    pub compute_seconds: Vec<f64>,
}

impl RankVote {
    /// Number of values in a vote.
    pub const NUM_NUMBERS: usize = 5 + Saving::NUM_NUMBERS;

    /// The numbers of the vote, for a transport that keeps the numbers of the ranks separate; see
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
    /// The end of a step from the numbers of all ranks, in their order. `None` if they are not
    /// numbers of [`RankVote::to_numbers`].
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
