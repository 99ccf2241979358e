//! Splitting a rank's part of a batch into pieces that fit into memory.

use std::ops::Range;

use crate::shard::shard;

/// Pieces of `part` with at most `max` samples each (`None` or 0: one piece), as equal as can be.
///
/// There is always at least one piece: a rank without samples still takes part in the
/// synchronization, with an empty one.
#[must_use]
pub fn micro_batches(part: &Range<u64>, max: Option<u32>) -> Vec<Range<u64>> {
    let num_samples = part.end.saturating_sub(part.start);
    let num_pieces = match max {
        None | Some(0) => 1,
        Some(max) => num_samples.div_ceil(u64::from(max)).max(1),
    };
    let num_pieces = u32::try_from(num_pieces).unwrap_or(u32::MAX);
    (0..num_pieces)
        .map(|piece| shard(part, piece, num_pieces))
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

    use super::*;

    proptest! {
        #[test]
        fn pieces_cover_the_part_and_keep_the_bound(len in 0_u64..3_000, max in 1_u32..70) {
            let pieces = micro_batches(&(5..5 + len), Some(max));
            prop_assert!(pieces.iter().all(|piece| piece.end - piece.start <= u64::from(max)));
            prop_assert_eq!(pieces.first().map(|piece| piece.start), Some(5));
            prop_assert_eq!(pieces.last().map(|piece| piece.end), Some(5 + len));
            prop_assert!(pieces.windows(2).all(|pair| pair[0].end == pair[1].start));
        }
    }

    #[test]
    fn an_empty_part_is_one_empty_piece() {
        assert_eq!(micro_batches(&(3..3), Some(2)), vec![3..3]);
    }

    #[test]
    fn without_a_bound_there_is_one_piece() {
        assert_eq!(micro_batches(&(0..9), None), vec![0..9]);
    }
}
