//! What the processes of a replica report to each other.

/// Numbers that each process can send with a vote.
pub const NUM_NUMBERS: usize = 2;
/// Bytes of a [`Vote`].
pub(super) const VOTE_BYTES: usize = 17 + 8 * NUM_NUMBERS;

/// What a process reports in a turn. Turns of a generation count from 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Vote {
    pub(super) generation: u64,
    pub(super) turn: u64,
    /// `false`: the process has failed and takes no further turn in this generation.
    pub(super) succeeded: bool,
    pub(super) numbers: [f64; NUM_NUMBERS],
}

impl Vote {
    pub(super) fn to_bytes(self) -> [u8; VOTE_BYTES] {
        let mut bytes = [0; VOTE_BYTES];
        bytes[..8].copy_from_slice(&self.generation.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.turn.to_le_bytes());
        bytes[16] = u8::from(self.succeeded);
        for (place, number) in bytes[17..].chunks_exact_mut(8).zip(self.numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    pub(super) fn of(bytes: [u8; VOTE_BYTES]) -> Self {
        let number = |start: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[start..start + 8]);
            u64::from_le_bytes(number)
        };
        Self {
            generation: number(0),
            turn: number(8),
            succeeded: bytes[16] == 1,
            numbers: std::array::from_fn(|index| f64::from_bits(number(17 + 8 * index))),
        }
    }

    /// What this vote of a sibling says about a turn that this process takes.
    pub(super) fn says_of(self, generation: u64, turn: u64) -> Says {
        match self.generation.cmp(&generation) {
            std::cmp::Ordering::Less => Says::Nothing,
            // It has left the generation of this turn.
            std::cmp::Ordering::Greater => Says::FailedAndLeft,
            std::cmp::Ordering::Equal if !self.succeeded => Says::Failed,
            std::cmp::Ordering::Equal if self.turn < turn => Says::Nothing,
            std::cmp::Ordering::Equal => Says::Succeeded,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Says {
    /// The vote is older than the turn.
    Nothing,
    Succeeded,
    Failed,
    /// The turn has failed, and the vote counts for a later generation.
    FailedAndLeft,
}
