//! Names of checkpoints, the division of their bytes among ranks, and retention.
//!
//! All tensors one after the other form one row of bytes, which the ranks divide among themselves
//! like a batch. So any number of ranks can write it, and any other number can read it.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::ledger::Head;
use crate::shard::shard;

/// A checkpoint's place in the order of checkpoints. A later generation comes first, even if a
/// superseded generation still commits more steps.
///
/// The name is that of the state's last committed step, whichever generation saves it. So two
/// checkpoints of one name have the same content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CheckpointId {
    /// Generation that committed the last step of the state.
    pub generation: u64,
    pub step: u64,
}

impl CheckpointId {
    /// Returns the checkpoint of the state whose ledger ends with this line.
    #[must_use]
    pub const fn of(head: &Head) -> Self {
        Self {
            generation: head.generation,
            step: head.step,
        }
    }

    /// Name of the checkpoint's directory. Names sort in the order of the checkpoints.
    #[must_use]
    pub fn name(&self) -> String {
        let Self { generation, step } = self;
        format!("gen-{generation:010}-step-{step:012}")
    }

    /// Name of the directory until it is complete. Each generation that saves the checkpoint writes
    /// into its own directory.
    #[must_use]
    pub fn partial_name(&self, writer: u64) -> String {
        format!("{}{PARTIAL}-{writer}", self.name())
    }

    /// Name of the directory, until it is complete, in which one process writes the whole
    /// checkpoint. Attempts are counted from 1: if a process dies while it writes, its directory
    /// remains, and the next process uses the next number.
    #[must_use]
    pub fn alone_name(&self, attempt: u32) -> String {
        format!("{}{PARTIAL}-alone-{attempt}", self.name())
    }

    /// Name of the directory of a damaged checkpoint while a new copy of the
    /// same state replaces it.
    #[must_use]
    pub fn damaged_name(&self) -> String {
        format!("{}{PARTIAL}-damaged", self.name())
    }

    /// Parses the name of a directory; `None` if it is not that of a checkpoint.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let (generation, step) = name.strip_prefix("gen-")?.split_once("-step-")?;
        let id = Self {
            generation: generation.parse().ok()?,
            step: step.parse().ok()?,
        };
        // Accept one spelling only, so that the name leads back to this directory.
        (id.name() == name).then_some(id)
    }

    /// Parses the name of an incomplete checkpoint's directory; `None` for any other name.
    #[must_use]
    pub fn parse_partial(name: &str) -> Option<Self> {
        let (name, writer) = name.split_once(PARTIAL)?;
        // Earlier versions did not write the writer's number into the name.
        let is_ours = writer.is_empty() || writer.starts_with('-');
        Self::parse(name).filter(|_| is_ours)
    }
}

const PARTIAL: &str = ".partial";

/// A range of bytes of one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Index of the tensor in the state.
    pub tensor: usize,
    pub bytes: Range<u64>,
}

/// Returns the pieces that a rank writes, of tensors with these sizes in bytes. They are in order
/// and not empty, and there is no gap or overlap between ranks.
#[must_use]
pub fn pieces(tensor_bytes: &[u64], rank: u32, world_size: u32) -> Vec<Piece> {
    let total = tensor_bytes.iter().sum();
    let part = shard(&(0..total), rank, world_size);
    let mut pieces = Vec::new();
    let mut start = 0;
    for (tensor, size) in tensor_bytes.iter().enumerate() {
        let bytes = part.start.max(start)..part.end.min(start + size);
        if bytes.start < bytes.end {
            let bytes = bytes.start - start..bytes.end - start;
            pieces.push(Piece { tensor, bytes });
        }
        start += size;
    }
    pieces
}

/// Selects the checkpoints to delete so that the newest `keep` loadable ones remain, and `best`
/// too. A checkpoint that cannot be loaded is not counted; it is deleted once it is older than the
/// ones that are kept.
///
/// A checkpoint with more steps than the newest one remains until the newest one has as many steps.
/// If training was rolled back by mistake, it is the only copy of those steps.
#[must_use]
pub fn superfluous(
    checkpoints: &[(CheckpointId, bool)],
    keep: usize,
    best: Option<CheckpointId>,
) -> Vec<CheckpointId> {
    let mut valid: Vec<CheckpointId> = checkpoints
        .iter()
        .filter_map(|(id, is_valid)| is_valid.then_some(*id))
        .collect();
    valid.sort_unstable_by(|left, right| right.cmp(left));
    let oldest_kept = keep.checked_sub(1).and_then(|last| valid.get(last));
    let (Some(newest), Some(oldest_kept)) = (valid.first(), oldest_kept) else {
        return Vec::new();
    };
    let older = checkpoints.iter().map(|(id, _)| *id);
    older
        .filter(|id| id < oldest_kept && id.step <= newest.step && Some(*id) != best)
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert_eq, proptest};

    use super::*;

    const fn id(generation: u64, step: u64) -> CheckpointId {
        CheckpointId { generation, step }
    }

    #[test]
    fn checkpoint_names_round_trip_and_sort() {
        let ids = [id(1, 900), id(2, 7), id(2, 1_000), id(10, 0)];
        let names = ids.map(|id| id.name());
        assert!(names.is_sorted());
        assert_eq!(names[0], "gen-0000000001-step-000000000900");
        for (id, name) in ids.into_iter().zip(&names) {
            assert_eq!(CheckpointId::parse(name), Some(id));
            assert_eq!(CheckpointId::parse_partial(&id.partial_name(7)), Some(id));
            assert_eq!(CheckpointId::parse(&id.partial_name(7)), None);
            let earlier = format!("{name}.partial");
            assert_eq!(CheckpointId::parse_partial(&earlier), Some(id));
            let alone = id.alone_name(2);
            assert_eq!(CheckpointId::parse_partial(&alone), Some(id));
            assert_eq!(CheckpointId::parse(&alone), None);
        }
    }

    #[test]
    fn other_names_are_not_checkpoints() {
        for name in [
            "",
            "lost+found",
            "gen-1-step-2",
            "gen-+000000001-step-000000000900",
        ] {
            assert_eq!(CheckpointId::parse(name), None, "{name}");
            assert_eq!(CheckpointId::parse_partial(name), None, "{name}");
        }
    }

    proptest! {
        #[test]
        fn pieces_cover_every_byte_once_in_order(
            sizes in proptest::collection::vec(0_u64..50, 0..12), world_size in 1_u32..9,
        ) {
            let all: Vec<(usize, u64)> = sizes
                .iter()
                .enumerate()
                .flat_map(|(tensor, size)| (0..*size).map(move |byte| (tensor, byte)))
                .collect();
            let written: Vec<(usize, u64)> = (0..world_size)
                .flat_map(|rank| pieces(&sizes, rank, world_size))
                .flat_map(|piece| piece.bytes.map(move |byte| (piece.tensor, byte)))
                .collect();
            prop_assert_eq!(written, all);
        }
    }

    #[test]
    fn retention_keeps_the_newest_loadable_checkpoints() {
        let checkpoints = [
            (id(1, 10), true),
            (id(1, 13), false),
            (id(1, 12), true),
            (id(2, 15), true),
            (id(2, 25), false),
        ];
        assert_eq!(superfluous(&checkpoints, 2, None), [id(1, 10)]);
        assert_eq!(
            superfluous(&checkpoints, 1, None),
            [id(1, 10), id(1, 13), id(1, 12)]
        );
        assert_eq!(superfluous(&checkpoints, 3, None), []);
        assert_eq!(superfluous(&checkpoints, 4, None), []);
    }

    #[test]
    fn retention_keeps_checkpoints_ahead_of_the_newest() {
        let mut checkpoints = vec![(id(1, 900), true), (id(2, 10), true), (id(2, 20), true)];
        assert_eq!(superfluous(&checkpoints, 1, None), [id(2, 10)]);
        checkpoints.push((id(2, 900), true));
        let all_older = [id(1, 900), id(2, 10), id(2, 20)];
        assert_eq!(superfluous(&checkpoints, 1, None), all_older);
    }

    #[test]
    fn retention_keeps_the_best_checkpoint() {
        let checkpoints = [
            (id(1, 10), true),
            (id(1, 20), true),
            (id(2, 15), true),
            (id(2, 25), true),
        ];
        let deleted = |best| superfluous(&checkpoints, 2, best);
        assert_eq!(deleted(Some(id(1, 10))), [id(1, 20)]);
        assert_eq!(deleted(Some(id(1, 20))), [id(1, 10)]);
        // One of the two newest is the best, so no third one is kept.
        assert_eq!(deleted(Some(id(2, 15))), [id(1, 10), id(1, 20)]);
    }
}
