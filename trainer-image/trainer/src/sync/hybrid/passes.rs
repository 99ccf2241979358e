//! The passes of the processes of a replica, which compute them at the same time.

use std::ops::Range;

use roundhouse_elastic::micro::{micro_batches, micro_batches_of_groups};
use roundhouse_elastic::shard::shard_of_groups;
use roundhouse_elastic::slices::places;

use crate::sync::Pass;

/// A rank among all ranks. Replicas are consecutive ranks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) rank: u32,
    pub(super) world_size: u32,
    /// Number of processes of a replica.
    pub(super) num_shards: u32,
}

impl Place {
    /// Index of the process in its replica.
    const fn shard(self) -> u32 {
        self.rank % self.num_shards
    }

    /// The ranks of the replica.
    const fn replica(self) -> Range<u32> {
        let first = self.rank - self.shard();
        first..first + self.num_shards
    }
}

/// The passes over the samples of a process, of at most `most` samples, cut at multiples of
/// `group_size` places. All processes of the replica make the same number of passes.
pub(super) fn of_samples(
    place: Place,
    batch: &Range<u64>,
    most: Option<u32>,
    group_size: u64,
) -> Vec<Pass> {
    let of_each = place.replica().map(|rank| {
        let part = shard_of_groups(batch, rank, place.world_size, group_size);
        micro_batches_of_groups(&part, most, group_size)
    });
    let mut passes = padded(place, of_each.collect(), batch, group_size);
    for pass in &mut passes {
        pass.slice = pass.places.start - batch.start;
    }
    ended(passes)
}

/// The slice of each process of the replica in a round, of the slices `own` of the replica. The
/// processes take turns, so the slices come in order.
pub(super) fn slices_of_round(place: Place, own: &Range<u32>, round: u32) -> Vec<Option<u32>> {
    let first = own.start + round * place.num_shards;
    let slices = first..first + place.num_shards;
    slices.map(|it| own.contains(&it).then_some(it)).collect()
}

/// The passes over the slices of a process, of at most `most` samples; `own` are the slices of the
/// replica. In each round all processes of the replica make the same number of passes.
pub(super) fn of_slices(
    place: Place,
    batch: &Range<u64>,
    most: Option<u32>,
    group_size: u64,
    (own, num_slices): (Range<u32>, u32),
) -> Vec<Pass> {
    let num_rounds = (own.end - own.start).div_ceil(place.num_shards);
    let mut passes = Vec::new();
    for round in 0..num_rounds.max(1) {
        let slices = slices_of_round(place, &own, round);
        let pieces = |slice: &Option<u32>| {
            let places = slice.map(|slice| places(batch, slice, num_slices));
            places.map_or_else(Vec::new, |places| micro_batches(&places, most))
        };
        let of_each = slices.iter().map(pieces).collect();
        let slice = slices[place.shard() as usize].unwrap_or_default();
        let mut of_round = padded(place, of_each, batch, group_size);
        for pass in &mut of_round {
            pass.slice = slice.into();
        }
        if let Some(last) = of_round.last_mut() {
            last.ends_slice = true;
        }
        passes.extend(of_round);
    }
    ended(passes)
}

/// The passes of this process over its pieces. Idle ones follow if other processes of the replica
/// have more pieces.
fn padded(
    place: Place,
    mut of_each: Vec<Vec<Range<u64>>>,
    batch: &Range<u64>,
    group_size: u64,
) -> Vec<Pass> {
    for pieces in &mut of_each {
        pieces.retain(|places| !places.is_empty());
    }
    let most = of_each.iter().map(Vec::len).max().unwrap_or_default();
    let own = of_each.swap_remove(place.shard() as usize);
    // With samples of this batch an idle pass is finite if the batch is.
    let idle = batch.start..(batch.start + group_size).min(batch.end);
    let idle = std::iter::repeat((idle, true));
    let own = own.into_iter().map(|places| (places, false));
    let passes = own.chain(idle).take(most.max(1));
    let pass = |(places, is_idle)| Pass {
        places,
        slice: 0,
        ends_slice: false,
        is_last: false,
        is_idle,
    };
    passes.map(pass).collect()
}

/// Marks the last pass.
fn ended(mut passes: Vec<Pass>) -> Vec<Pass> {
    if let Some(last) = passes.last_mut() {
        (last.ends_slice, last.is_last) = (true, true);
    }
    passes
}

#[cfg(test)]
mod tests {
    use roundhouse_elastic::slices::owned;

    use super::*;

    /// The passes of all ranks.
    fn of_all(
        world_size: u32,
        num_shards: u32,
        passes: impl Fn(Place) -> Vec<Pass>,
    ) -> Vec<Vec<Pass>> {
        let place = |rank| Place {
            rank,
            world_size,
            num_shards,
        };
        (0..world_size).map(|rank| passes(place(rank))).collect()
    }

    /// Each sample counts once, and the passes of a replica end together.
    fn check(all: &[Vec<Pass>], num_shards: u32, batch: &Range<u64>, what: &str) {
        let counted = all.iter().flatten().filter(|pass| !pass.is_idle);
        let mut counted: Vec<u64> = counted.flat_map(|pass| pass.places.clone()).collect();
        counted.sort_unstable();
        assert_eq!(counted, batch.clone().collect::<Vec<_>>(), "{what}");
        for replica in all.chunks(num_shards as usize) {
            let ends = |passes: &Vec<Pass>| {
                let ends = passes.iter().map(|pass| (pass.ends_slice, pass.is_last));
                ends.collect::<Vec<_>>()
            };
            for passes in replica {
                assert_eq!(ends(passes), ends(&replica[0]), "{what}");
                assert!(passes.iter().all(|pass| !pass.places.is_empty()), "{what}");
                let last = passes.iter().filter(|pass| pass.is_last);
                assert_eq!(last.count(), 1, "{what}");
            }
        }
    }

    #[test]
    fn processes_of_a_replica_make_the_same_passes() {
        for batch in [0..1, 5..6, 10..23, 0..64] {
            for (num_shards, num_replicas) in [(2, 1), (2, 3), (3, 2), (4, 1)] {
                let world_size = num_shards * num_replicas;
                for most in [None, Some(1), Some(2), Some(5)] {
                    let what = format!("{batch:?}, {num_replicas} of {num_shards}, {most:?}");
                    let samples = of_all(world_size, num_shards, |place| {
                        of_samples(place, &batch, most, 1)
                    });
                    check(&samples, num_shards, &batch, &what);
                    for num_slices in [1, 4, 7] {
                        let slices = of_all(world_size, num_shards, |place| {
                            let replica = place.rank / num_shards;
                            let own = owned(num_slices, replica, num_replicas);
                            of_slices(place, &batch, most, 1, (own, num_slices))
                        });
                        check(&slices, num_shards, &batch, &what);
                    }
                }
            }
        }
    }

    #[test]
    fn passes_are_cut_at_groups() {
        let passes = of_all(4, 2, |place| of_samples(place, &(0..22), Some(4), 4));
        for pass in passes.iter().flatten() {
            assert_eq!(pass.places.start % 4, 0, "{pass:?}");
        }
        check(&passes, 2, &(0..22), "groups");
    }

    #[test]
    fn processes_take_turns_with_slices() {
        let place = Place {
            rank: 3,
            world_size: 4,
            num_shards: 2,
        };
        assert_eq!(slices_of_round(place, &(4..7), 0), [Some(4), Some(5)]);
        assert_eq!(slices_of_round(place, &(4..7), 1), [Some(6), None]);
    }
}
