//! Division of a rank's part of a batch into micro-batches that fit into memory.

use std::ops::Range;

use crate::shard::shard_of_groups;

/// Returns [`micro_batches`] that are cut only at multiples of `group` places from the start of
/// `part` (0 counts as 1). A piece has at least one group, even if that is larger than `max`.
#[must_use]
pub fn micro_batches_of_groups(part: &Range<u64>, max: Option<u32>, group: u64) -> Vec<Range<u64>> {
    let group = group.max(1);
    let num_groups = part.end.saturating_sub(part.start).div_ceil(group);
    let most = max
        .filter(|max| *max > 0)
        .map(|max| (u64::from(max) / group).max(1));
    let num_pieces = most.map_or(1, |most| num_groups.div_ceil(most).max(1));
    let num_pieces = u32::try_from(num_pieces).unwrap_or(u32::MAX);
    (0..num_pieces)
        .map(|piece| shard_of_groups(part, piece, num_pieces, group))
        .collect()
}

/// Returns pieces of `part` with at most `max` samples each, of nearly equal size. `None` or
/// 0 means one piece.
///
/// There is always at least one piece: a rank without samples takes part in the synchronization
/// with an empty piece.
#[must_use]
pub fn micro_batches(part: &Range<u64>, max: Option<u32>) -> Vec<Range<u64>> {
    micro_batches_of_groups(part, max, 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

    use super::*;

    proptest! {
        #[test]
        fn micro_batches_cover_the_part_within_the_limit(len in 0_u64..3_000, max in 1_u32..70) {
            let pieces = micro_batches(&(5..5 + len), Some(max));
            prop_assert!(pieces.iter().all(|piece| piece.end - piece.start <= u64::from(max)));
            prop_assert_eq!(pieces.first().map(|piece| piece.start), Some(5));
            prop_assert_eq!(pieces.last().map(|piece| piece.end), Some(5 + len));
            prop_assert!(pieces.windows(2).all(|pair| pair[0].end == pair[1].start));
        }
    }

    proptest! {
        #[test]
        fn micro_batches_are_cut_between_groups(
            len in 0_u64..3_000, max in 1_u32..70, group in 0_u64..90,
        ) {
            let pieces = micro_batches_of_groups(&(5..5 + len), Some(max), group);
            let bound = u64::from(max).max(group);
            prop_assert!(pieces.iter().all(|piece| piece.end - piece.start <= bound));
            for piece in &pieces {
                prop_assert!(piece.end == 5 + len || (piece.end - 5).is_multiple_of(group.max(1)));
            }
            prop_assert_eq!(pieces.last().map(|piece| piece.end), Some(5 + len));
            prop_assert!(pieces.windows(2).all(|pair| pair[0].end == pair[1].start));
        }
    }

    #[test]
    fn empty_part_is_one_empty_piece() {
        assert_eq!(micro_batches(&(3..3), Some(2)), vec![3..3]);
    }

    #[test]
    fn no_limit_gives_one_micro_batch() {
        assert_eq!(micro_batches(&(0..9), None), vec![0..9]);
    }
}
