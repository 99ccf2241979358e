//! How the state travels: which rank sends to which, and how often.

use super::*;

/// Number of bytes that a rank moves if it only sends or only receives: one chunk and the words,
/// each with its seal.
fn one_copy() -> usize {
    Bytes::filled(0).0.len() + 8 + live(8, 20).words().len() + 8
}

#[test]
fn holder_that_serves_no_rank_moves_nothing() {
    let holders = || (0..3).map(|_| process(live(8, 20), 1));
    let one = one_copy();
    // One joining rank: the lowest rank sends to it.
    let formed = form(holders().chain([process(fresh(), 9)]).collect(), &[]);
    let moved: Vec<_> = formed.iter().map(|rank| rank.num_moved).collect();
    assert_eq!(moved, [one, 0, 0, one]);
    // Two joining ranks: each has its own sender.
    let newcomers = (0..2).map(|_| process(fresh(), 9));
    let formed = form(holders().chain(newcomers).collect(), &[]);
    let moved: Vec<_> = formed.iter().map(|rank| rank.num_moved).collect();
    assert_eq!(moved, [one, one, 0, one, one]);
    for rank in &formed {
        assert_eq!(rank.bytes, Bytes::filled(1));
        assert_eq!(rank.claim(), live(8, 20).claim());
    }
}

#[test]
fn receivers_forward_the_state() {
    let processes = (0..4).map(|rank| match rank {
        2 => process(live(8, 20), 1),
        _ => process(fresh(), 9),
    });
    let formed = form(processes.collect(), &[]);
    let moved: Vec<_> = formed.iter().map(|rank| rank.num_moved).collect();
    let one = one_copy();
    // The chain is 2, 0, 1, 3: no rank sends the state twice.
    assert_eq!(moved, [2 * one, 2 * one, one, one]);
    for rank in &formed {
        assert_eq!(
            (rank.origin(), rank.local_state.position),
            (Origin::Live, position(20))
        );
        assert_eq!(rank.bytes, Bytes::filled(1));
    }
}

/// The ranks that wait for the receiver may be lost by then.
#[test]
fn receiver_of_all_chunks_has_a_whole_state() {
    let formed = form(
        vec![process(live(8, 20), 1), process(fresh(), 9)],
        // Lost in the barrier at the end.
        &[(0, 4)],
    );
    assert!(matches!(formed[1].result, Err(Failure::PeerLost(_))));
    assert_eq!(formed[1].claim(), live(8, 20).claim());
    assert_eq!(formed[1].bytes, Bytes::filled(1));
}
