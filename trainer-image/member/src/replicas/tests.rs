use super::*;
use crate::group::threads::Threads;
use crate::state::tests::{Bytes, NUM_BYTES};
use crate::state_broadcast::sum_of_words;

/// Result of each rank if bits of some ranks are flipped: rank, byte, bit.
fn found(size: u32, flips: &[(u32, usize, u8)]) -> Vec<Option<Difference>> {
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..)
            .zip(Threads::group(size, &[]))
            .map(|(rank, group)| {
                scope.spawn(move || {
                    let mut state = Bytes::filled(3);
                    for (_, byte, bit) in flips.iter().filter(|flip| flip.0 == rank) {
                        state.0[*byte] ^= 1 << bit;
                    }
                    let world = World::of(group);
                    let found = compare(&world, &state, 40);
                    // No rank leaves before the others are done.
                    world.barrier().unwrap();
                    found.unwrap()
                })
            })
            .collect();
        ranks.into_iter().map(|it| it.join().unwrap()).collect()
    })
}

fn difference(tensor: usize, mismatch: RankMismatch) -> Difference {
    Difference {
        step: 40,
        tensor,
        name: ["a", "b", "c"][tensor].to_owned(),
        mismatch,
    }
}

fn outliers(reference: u32, ranks: &[u32]) -> RankMismatch {
    RankMismatch::Outliers {
        reference,
        ranks: ranks.to_vec(),
    }
}

const fn no_majority(num_ranks: u32) -> RankMismatch {
    RankMismatch::NoMajority { num_ranks }
}

#[test]
fn difference_names_first_tensor_and_outliers() {
    let flip = |rank| (rank, 14, 7);
    for (size, flips, expected) in [
        (1, vec![flip(0)], None),
        (3, vec![], None),
        (2, vec![flip(1)], Some(difference(2, no_majority(2)))),
        (3, vec![flip(1)], Some(difference(2, outliers(0, &[1])))),
        (3, vec![flip(0)], Some(difference(2, outliers(1, &[0])))),
        (
            4,
            vec![flip(0), (2, 12, 0)],
            Some(difference(1, no_majority(4))),
        ),
        (
            5,
            vec![(4, 0, 1), (1, 28, 3)],
            Some(difference(0, outliers(0, &[1, 4]))),
        ),
        (3, vec![flip(0), flip(1), flip(2)], None),
    ] {
        let found = found(size, &flips);
        assert!(
            found.iter().all(|it| *it == expected),
            "{flips:?} {found:?}"
        );
    }
}

#[test]
fn difference_message_names_consequence() {
    let words = difference(1, no_majority(2)).to_string();
    let expected = "the replicas differ after step 40: b of ranks 0 and 1 differ; there is no majority; \
                    no checkpoint was written";
    assert_eq!(words, expected);
}

#[test]
fn flipped_bit_changes_digest_of_its_tensor_only() {
    let mut state = Bytes::filled(0xa5);
    let before = state.digests().unwrap();
    for bit in 0..8 * usize::try_from(NUM_BYTES).unwrap() {
        state.0[bit / 8] ^= 1 << (bit % 8);
        let tensor = match bit / 8 {
            0..12 => 0,
            12 => 1,
            _ => 2,
        };
        let after = state.digests().unwrap();
        let changed: Vec<usize> = (0..3).filter(|at| before[*at] != after[*at]).collect();
        assert_eq!(changed, [tensor], "bit {bit}");
        state.0[bit / 8] ^= 1 << (bit % 8);
    }
    assert_eq!(before[1], digest(sum_of_words(&[0xa5])));
}

#[test]
fn only_outliers_fail_unless_there_is_no_majority() {
    let ends = |difference: &Difference, rank| {
        matches!(
            difference.clone().failure_of(rank),
            Failure::ReplicasDiffer(_)
        )
    };
    let known = difference(2, outliers(0, &[1]));
    assert_eq!(
        [0, 1, 2].map(|rank| ends(&known, rank)),
        [false, true, false]
    );
    let unknown = difference(2, no_majority(2));
    assert_eq!([0, 1].map(|rank| ends(&unknown, rank)), [true, true]);
}
