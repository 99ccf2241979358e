//! The progress of checkpoints and ledger that the ranks exchange: a few numbers of the sum at the
//! end of each step.

use roundhouse_elastic::saving::{Stage, Stages};

use super::whole;

/// One rank's progress of checkpoints and ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent votes of a rank")]
pub struct Saving {
    /// Stage of the save in flight.
    pub stage: Stage,
    /// Whether a save is due by time. Only rank 0's clock counts.
    pub is_time: bool,
    /// Whether the volume has accepted no bytes of this rank for long enough to report it.
    pub is_stuck: bool,
    /// Whether this rank has stopped waiting for the volume.
    pub gives_up: bool,
    /// Step of the last durable ledger line. Only rank 0's counts.
    pub durable_line: u64,
    /// Whether this rank still writes a local copy.
    pub is_copying: bool,
    /// Whether this rank could not write its last local copy.
    pub copy_failed: bool,
}

/// The progress of checkpoints and ledger of all ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SavingSum {
    /// Numbers of ranks by stage of the save in flight.
    pub stages: Stages,
    /// Whether a save is due by rank 0's clock.
    pub is_time: bool,
    /// Number of ranks from which the volume accepts nothing.
    pub num_stuck: u64,
    /// Whether a rank has stopped waiting for the volume.
    pub gives_up: bool,
    /// Step of the last durable ledger line; 0 if there is none.
    pub durable_line: u64,
    /// Number of ranks that still write a local copy.
    pub num_copying: u64,
    /// Number of ranks that could not write their last local copy.
    pub num_copies_failed: u64,
}

impl Saving {
    /// Number of slots in a sum.
    pub const NUM_NUMBERS: usize = 9;

    /// The numbers that a rank contributes to the sum.
    #[must_use]
    pub fn to_numbers(&self, rank: u32) -> [f64; Self::NUM_NUMBERS] {
        let Self {
            stage,
            is_time,
            is_stuck,
            gives_up,
            durable_line,
            is_copying,
            copy_failed,
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
            u64::from(is_copying),
            u64::from(copy_failed),
        ]
        .map(|value| value as f64)
    }
}

impl SavingSum {
    /// Reads the sums of [`Saving::to_numbers`].
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
            num_copying: at(7),
            num_copies_failed: at(8),
        }
    }
}
