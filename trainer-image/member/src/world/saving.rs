//! What the ranks tell each other about checkpoints and ledger: a few numbers of the sum that every
//! step ends with.

use roundhouse_elastic::saving::{Stage, Stages};

use super::whole;

/// What one rank brings to a step's end about checkpoints and ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Saving {
    /// How far it is with the save in flight.
    pub stage: Stage,
    /// Whether it is time for a save; rank 0's clock alone counts.
    pub is_time: bool,
    /// Whether the volume has taken nothing from it for as long as is worth telling.
    pub is_stuck: bool,
    /// Whether it waits for the volume no longer.
    pub gives_up: bool,
    /// Step of the last line that is durable in the ledger; rank 0's alone counts.
    pub durable_line: u64,
}

/// What all ranks together say about checkpoints and ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SavingSum {
    /// Stages of the save in flight.
    pub stages: Stages,
    /// Whether rank 0 says that it is time for a save.
    pub is_time: bool,
    /// Ranks from which the volume takes nothing.
    pub num_stuck: u64,
    /// Whether a rank waits for the volume no longer.
    pub gives_up: bool,
    /// Step of the last line that is durable in the ledger; 0 if there is none.
    pub durable_line: u64,
}

impl Saving {
    /// Numbers that it takes in a sum.
    pub const NUM_NUMBERS: usize = 7;

    /// What a rank adds to the sum.
    #[must_use]
    pub fn to_numbers(&self, rank: u32) -> [f64; Self::NUM_NUMBERS] {
        let Self {
            stage,
            is_time,
            is_stuck,
            gives_up,
            durable_line,
        } = *self;
        let stages = Stages::one(stage);
        let leads = u64::from(rank == 0);
        [
            stages.num_busy,
            stages.num_durable,
            stages.num_failed,
            u64::from(is_time) * leads,
            u64::from(is_stuck),
            u64::from(gives_up),
            durable_line * leads,
        ]
        .map(|value| value as f64)
    }
}

impl SavingSum {
    /// Reads it from the sums of [`Saving::to_numbers`].
    #[must_use]
    pub fn of(sums: &[f64]) -> Self {
        let at = |index: usize| sums.get(index).copied().map_or(0, whole);
        Self {
            stages: Stages {
                num_busy: at(0),
                num_durable: at(1),
                num_failed: at(2),
            },
            is_time: at(3) > 0,
            num_stuck: at(4),
            gives_up: at(5) > 0,
            durable_line: at(6),
        }
    }
}
