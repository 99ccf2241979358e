//! What a checkpoint is called, how its bytes are shared out, and which ones are kept.
//!
//! All tensors one after the other are one row of bytes, which the ranks cut among themselves like a
//! batch: any number of ranks writes it, any other number reads it.

use std::ops::Range;

use crate::ledger::Head;
use crate::shard::shard;

/// A checkpoint's place in the order of checkpoints: a later generation's counts more, whatever a
/// superseded one still committed.
///
/// It is that of the saved state's last committed step, whatever generation saves it. So one name is one content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CheckpointId {
    /// Generation that committed its last step.
    pub generation: u64,
    /// Committed steps.
    pub step: u64,
}

impl CheckpointId {
    /// The checkpoint of the state whose ledger ends with this line.
    #[must_use]
    pub const fn of(head: &Head) -> Self {
        Self {
            generation: head.generation,
            step: head.step,
        }
    }

    /// Name of its directory; sorts as the checkpoints do.
    #[must_use]
    pub fn name(&self) -> String {
        let Self { generation, step } = self;
        format!("gen-{generation:010}-step-{step:012}")
    }

    /// Name of its directory until it is complete. Each generation that saves it writes into a directory of its own.
    #[must_use]
    pub fn partial_name(&self, writer: u64) -> String {
        format!("{}{PARTIAL}-{writer}", self.name())
    }

    /// Name of the directory in which one process writes all of it, until it is complete. Attempts are counted from 1:
    /// a process that ended while it wrote leaves its directory behind, and the next one takes the next number.
    #[must_use]
    pub fn alone_name(&self, attempt: u32) -> String {
        format!("{}{PARTIAL}-alone-{attempt}", self.name())
    }

    /// Name of the directory of a damaged one while the same state takes its place.
    #[must_use]
    pub fn damaged_name(&self) -> String {
        format!("{}{PARTIAL}-damaged", self.name())
    }

    /// The checkpoint of a directory; `None` for any other name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let (generation, step) = name.strip_prefix("gen-")?.split_once("-step-")?;
        let id = Self {
            generation: generation.parse().ok()?,
            step: step.parse().ok()?,
        };
        // One name for each, so that what was parsed is found again.
        (id.name() == name).then_some(id)
    }

    /// The checkpoint of a directory that is not complete; `None` for any other name.
    #[must_use]
    pub fn parse_partial(name: &str) -> Option<Self> {
        let (name, writer) = name.split_once(PARTIAL)?;
        // Earlier versions named no writer.
        let is_ours = writer.is_empty() || writer.starts_with('-');
        Self::parse(name).filter(|_| is_ours)
    }
}

const PARTIAL: &str = ".partial";

/// Some bytes of one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Index of the tensor.
    pub tensor: usize,
    /// Its bytes.
    pub bytes: Range<u64>,
}

/// The pieces that a rank writes, of tensors with these sizes in bytes; in order, without gap or
/// overlap between ranks, and none of them empty.
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

/// Which of the checkpoints are to be deleted so that the newest `keep` that can be loaded stay, and `best` with them.
/// A checkpoint that cannot be loaded is not counted, and is deleted once it is older than the newest ones.
///
/// A checkpoint with more steps than the newest one stays until that has come as far: it is all that is left of these
/// steps if training was taken back by mistake.
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
    fn a_name_reads_back_and_sorts_as_the_checkpoints_do() {
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
    fn another_name_is_no_checkpoint() {
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
        fn every_byte_of_every_tensor_is_written_once_in_order(
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
    fn the_newest_that_can_be_loaded_are_kept() {
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
    fn what_has_more_steps_than_the_newest_checkpoint_is_not_deleted() {
        let mut checkpoints = vec![(id(1, 900), true), (id(2, 10), true), (id(2, 20), true)];
        assert_eq!(superfluous(&checkpoints, 1, None), [id(2, 10)]);
        checkpoints.push((id(2, 900), true));
        let all_older = [id(1, 900), id(2, 10), id(2, 20)];
        assert_eq!(superfluous(&checkpoints, 1, None), all_older);
    }

    #[test]
    fn the_best_checkpoint_is_kept_beside_the_newest_ones() {
        let checkpoints = [
            (id(1, 10), true),
            (id(1, 20), true),
            (id(2, 15), true),
            (id(2, 25), true),
        ];
        let deleted = |best| superfluous(&checkpoints, 2, best);
        assert_eq!(deleted(Some(id(1, 10))), [id(1, 20)]);
        assert_eq!(deleted(Some(id(1, 20))), [id(1, 10)]);
        // One of the newest ones is the best: no more than those stay.
        assert_eq!(deleted(Some(id(2, 15))), [id(1, 10), id(1, 20)]);
    }
}
