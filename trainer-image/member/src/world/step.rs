//! What a rank brings to the end of a step, and what the end of a step tells all ranks.

use std::time::Duration;

use roundhouse_elastic::Agreement;

use super::saving::{Saving, SavingSum};
use super::whole;

/// What one rank brings to a step's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
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
pub struct StepEnd {
    /// Sum over all samples of the step; NaN if that of a rank is not finite.
    pub loss_sum: f64,
    /// See [`Agreement`].
    pub agreement: Agreement,
    /// See [`SavingSum`].
    pub saving: SavingSum,
    /// [`Standing::own_time`] of each rank.
    pub own_seconds: Vec<f64>,
}

impl Standing {
    /// How many numbers each rank tells the others at the end of a step.
    pub const NUM_NUMBERS: usize = 5 + Saving::NUM_NUMBERS;

    /// What this rank tells the others, for a way that keeps the numbers of the ranks apart; see
    /// [`StepEnd::of_ranks`].
    #[must_use]
    pub fn to_numbers(&self, rank: u32, local_loss_sum: f64) -> Vec<f64> {
        let Self {
            finite,
            leaving,
            newest_seen,
            saving,
            own_time,
        } = self;
        let flag = |flag: bool| f64::from(u8::from(flag));
        let mut numbers = vec![
            local_loss_sum,
            flag(*finite),
            flag(*leaving),
            *newest_seen as f64,
            own_time.as_secs_f64(),
        ];
        numbers.extend(saving.to_numbers(rank));
        numbers
    }
}

impl StepEnd {
    /// The end of a step from the numbers of all ranks, in their order. `None` if they are not numbers of
    /// [`Standing::to_numbers`].
    #[must_use]
    pub fn of_ranks(ranks: &[Vec<f64>]) -> Option<Self> {
        let mut end = Self {
            loss_sum: 0.0,
            agreement: Agreement::of(&[], 0, 0),
            saving: SavingSum::default(),
            own_seconds: Vec::with_capacity(ranks.len()),
        };
        let (mut newest, mut num_not_finite, mut num_leaving) = (Vec::new(), 0, 0);
        let mut saving = [0.0; Saving::NUM_NUMBERS];
        for numbers in ranks {
            let [loss, finite, leaving, seen, own_time, rest @ ..] = numbers.as_slice() else {
                return None;
            };
            if rest.len() != saving.len() {
                return None;
            }
            end.loss_sum += loss;
            num_not_finite += u64::from(!(*finite > 0.0 && loss.is_finite()));
            num_leaving += u64::from(*leaving > 0.0);
            newest.push(whole(*seen));
            end.own_seconds.push(*own_time);
            for (sum, number) in saving.iter_mut().zip(rest) {
                *sum += number;
            }
        }
        end.agreement = Agreement::of(&newest, num_not_finite, num_leaving);
        end.saving = SavingSum::of(&saving);
        Some(end)
    }
}
