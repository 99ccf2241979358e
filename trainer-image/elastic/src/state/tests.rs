use proptest::prelude::{Strategy, prop_assert, prop_assert_eq, proptest};

use super::*;

const fn claim(origin: Origin, generation: u64, step: u64) -> Claim {
    Claim {
        origin,
        generation,
        step,
        hash: 1_000 * generation + step,
    }
}

const fn live(generation: u64, step: u64) -> Claim {
    claim(Origin::Live, generation, step)
}

const fn loaded(generation: u64, step: u64) -> Claim {
    claim(Origin::Loaded, generation, step)
}

const FRESH: Claim = Claim::FRESH;

#[test]
fn the_best_claim_is_sent_by_the_lowest_rank_that_has_it() {
    let torn = live(1, 9).torn();
    for (what, claims, expected) in [
        (
            "the most steps win",
            &[live(1, 6), live(1, 7), live(1, 5), live(1, 7)][..],
            (1, true),
        ),
        ("a torn state does not", &[torn, live(1, 6)], (1, true)),
        (
            "equal live states need no sending",
            &[live(1, 7), live(1, 7)],
            (0, false),
        ),
        (
            "equal checkpoints do: one rank reads them",
            &[loaded(1, 7), loaded(1, 7)],
            (0, true),
        ),
        (
            "initial weights do: they are not taken on trust",
            &[FRESH, FRESH],
            (0, true),
        ),
        (
            "a checkpoint beats an older state in memory",
            &[live(1, 535), loaded(2, 500)],
            (1, true),
        ),
        (
            "of equal states one in memory is sent",
            &[loaded(2, 7), live(2, 7)],
            (1, true),
        ),
        (
            "a state in memory beats an older checkpoint",
            &[loaded(2, 7), live(2, 8)],
            (1, true),
        ),
        (
            "a checkpoint beats initial weights",
            &[FRESH, loaded(1, 3)],
            (1, true),
        ),
        (
            "a newer generation's checkpoint beats more steps",
            &[loaded(1, 30), loaded(2, 20)],
            (1, true),
        ),
        (
            "what a superseded generation committed is not gone on with",
            &[live(2, 50), live(3, 40)],
            (1, true),
        ),
        (
            "initial weights that were cut off are no loss",
            &[FRESH.torn(), FRESH],
            (1, true),
        ),
    ] {
        let source = StateSource::of(claims).unwrap();
        assert_eq!(source.claim, claims[source.rank], "{what}");
        assert_eq!((source.rank, source.must_send), expected, "{what}");
    }
}

#[test]
fn a_lost_state_never_gives_way_to_initial_weights() {
    let lost = |generation, step| Err(Lost { generation, step });
    for (claims, expected) in [
        (&[live(5, 50).torn(), FRESH][..], lost(5, 50)),
        (
            &[FRESH, loaded(2, 20).torn(), live(2, 21).torn()],
            lost(2, 21),
        ),
        (&[live(5, 50).torn(), live(5, 50).torn()], lost(5, 50)),
        (&[FRESH.torn(), FRESH.torn()], lost(0, 0)),
        (&[], lost(0, 0)),
    ] {
        assert_eq!(StateSource::of(claims), expected, "{claims:?}");
    }
}

#[test]
fn a_lost_state_that_an_older_one_replaces_is_told() {
    let lost = |claims: &[Claim]| StateSource::of(claims).unwrap().lost;
    let steps_37 = Some(Lost {
        generation: 1,
        step: 37,
    });
    assert_eq!(lost(&[live(1, 37).torn(), loaded(1, 20)]), steps_37);
    assert_eq!(lost(&[live(1, 37).torn(), live(1, 36)]), steps_37);
    // Another rank has what this one was receiving.
    assert_eq!(lost(&[live(1, 37).torn(), live(1, 37)]), None);
    assert_eq!(lost(&[live(1, 37).torn(), live(2, 20)]), None);
}

proptest! {
    #[test]
    fn no_claim_beats_the_best_and_every_origin_reads_back(
        claims in proptest::collection::vec(
            (0_u64..4, 0_u64..4, 0_u64..4)
                .prop_map(|(code, generation, step)| {
                    let is_first = step == 0 || code == Origin::Fresh.code();
                    let (generation, step) = if is_first { (0, 0) } else { (1 + generation, step) };
                    claim(Origin::from_code(code), generation, step)
                }),
            1..6,
        ),
    ) {
        match StateSource::of(&claims) {
            Err(_) => prop_assert!(claims.iter().all(|claim| claim.origin == Origin::Torn || claim.step == 0)),
            Ok(source) => {
                prop_assert!(claims.iter().all(|claim| *claim <= source.claim));
                prop_assert!(claims[..source.rank].iter().all(|claim| *claim < source.claim));
            }
        }
        for claim in claims {
            prop_assert_eq!(Origin::from_code(claim.origin.code()), claim.origin);
        }
    }
}
