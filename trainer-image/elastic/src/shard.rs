//! The part of a batch that each rank computes.
//!
//! Rank r of W takes `[start + G·r/W, start + G·(r+1)/W)`. The parts differ by at most one sample,
//! have no gap or overlap, and G need not be divisible by W. With G < W some parts are empty.

use std::ops::Range;

/// Returns the part of `whole` that `rank` of `world_size` computes.
///
/// A world size of 0 counts as 1, and a rank outside the world gets an empty part.
#[must_use]
pub fn shard(whole: &Range<u64>, rank: u32, world_size: u32) -> Range<u64> {
    let num_samples = u128::from(whole.end.saturating_sub(whole.start));
    let world_size = u128::from(world_size.max(1));
    let cut = |rank: u128| {
        // The result is at most num_samples, so it fits into 64 bits.
        let offset = num_samples * rank.min(world_size) / world_size;
        whole.start + u64::try_from(offset).unwrap_or(u64::MAX)
    };
    cut(u128::from(rank))..cut(u128::from(rank) + 1)
}

/// Returns the part of `whole` that `rank` of `world_size` computes if it is cut only at multiples
/// of `group` places from its start (0 counts as 1). Then statistics over a group of places do not
/// depend on the number of ranks. The last group may be smaller; parts differ by at most one group.
#[must_use]
pub fn shard_of_groups(whole: &Range<u64>, rank: u32, world_size: u32, group: u64) -> Range<u64> {
    let (group, num_samples) = (group.max(1), whole.end.saturating_sub(whole.start));
    let groups = shard(&(0..num_samples.div_ceil(group)), rank, world_size);
    let cut = |groups: u64| whole.start + (groups.saturating_mul(group)).min(num_samples);
    cut(groups.start)..cut(groups.end)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

    use super::*;

    proptest! {
        #[test]
        fn parts_cover_the_batch_and_differ_by_at_most_one(
            start in 0_u64..1 << 50, len in 0_u64..1 << 40, world_size in 1_u32..300,
        ) {
            let whole = start..start + len;
            let mut at = start;
            for rank in 0..world_size {
                let part = shard(&whole, rank, world_size);
                prop_assert_eq!(part.start, at);
                let size = part.end - part.start;
                let even = len / u64::from(world_size);
                prop_assert!(size == even || size == even + 1);
                at = part.end;
            }
            prop_assert_eq!(at, whole.end);
        }
    }

    proptest! {
        #[test]
        fn parts_of_groups_are_cut_between_groups(
            start in 0_u64..1 << 50, len in 0_u64..1 << 40, world_size in 1_u32..300, group in 0_u64..1_000,
        ) {
            let whole = start..start + len;
            let mut at = start;
            for rank in 0..world_size {
                let part = shard_of_groups(&whole, rank, world_size, group);
                prop_assert_eq!(part.start, at);
                prop_assert!(part.end == whole.end || (part.end - start).is_multiple_of(group.max(1)));
                at = part.end;
            }
            prop_assert_eq!(at, whole.end);
        }
    }

    #[test]
    fn groups_of_one_give_ordinary_parts() {
        for rank in 0..3 {
            let ordinary = shard(&(7..18), rank, 3);
            assert_eq!(shard_of_groups(&(7..18), rank, 3, 1), ordinary);
        }
        assert_eq!(shard_of_groups(&(0..10), 1, 2, 4), 4..10);
    }

    #[test]
    fn small_batch_leaves_some_ranks_without_samples() {
        let parts: Vec<_> = (0..4).map(|rank| shard(&(10..12), rank, 4)).collect();
        assert_eq!(parts, [10..10, 10..11, 11..11, 11..12]);
    }

    #[test]
    fn rank_outside_the_world_gets_an_empty_part() {
        assert_eq!(shard(&(0..8), 2, 2), 8..8);
    }
}
