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

const fn held(generation: u64, step: u64) -> Claim {
    claim(Origin::Held, generation, step)
}

const FRESH: Claim = Claim::FRESH;

#[test]
fn lowest_rank_with_the_best_claim_sends() {
    let torn = live(1, 9).torn();
    for (what, claims, expected) in [
        (
            "most steps win",
            &[live(1, 6), live(1, 7), live(1, 5), live(1, 7)][..],
            (1, true),
        ),
        ("torn state loses", &[torn, live(1, 6)], (1, true)),
        (
            "equal live states are not sent",
            &[live(1, 7), live(1, 7)],
            (0, false),
        ),
        (
            "equal checkpoints are sent: one rank reads them",
            &[loaded(1, 7), loaded(1, 7)],
            (0, true),
        ),
        (
            "initial weights are sent: they may differ",
            &[FRESH, FRESH],
            (0, true),
        ),
        (
            "a checkpoint beats an older state in memory",
            &[live(1, 535), loaded(2, 500)],
            (1, true),
        ),
        (
            "equal copies that workers have kept are not sent",
            &[held(1, 7), held(1, 7)],
            (0, false),
        ),
        (
            "a copy beats an older checkpoint",
            &[loaded(1, 6), held(1, 7)],
            (1, true),
        ),
        (
            "a checkpoint beats an older copy",
            &[held(1, 6), loaded(1, 7)],
            (1, true),
        ),
        (
            "of equal states, the one in memory is sent",
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
            "steps of a superseded generation do not count",
            &[live(2, 50), live(3, 40)],
            (1, true),
        ),
        (
            "interrupted initial weights are not a loss",
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
fn lost_state_is_never_replaced_by_initial_weights() {
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
fn lost_state_replaced_by_an_older_one_is_reported() {
    let lost = |claims: &[Claim]| StateSource::of(claims).unwrap().lost;
    let steps_37 = Some(Lost {
        generation: 1,
        step: 37,
    });
    assert_eq!(lost(&[live(1, 37).torn(), loaded(1, 20)]), steps_37);
    assert_eq!(lost(&[live(1, 37).torn(), live(1, 36)]), steps_37);
    // Another rank has the state that this one was receiving.
    assert_eq!(lost(&[live(1, 37).torn(), live(1, 37)]), None);
    assert_eq!(lost(&[live(1, 37).torn(), live(2, 20)]), None);
}

#[test]
fn only_live_states_continue_while_the_volume_is_silent() {
    let names = |checkpoint, generation| {
        Volume::Names(Names {
            checkpoint,
            generation,
        })
    };
    let none = names(None, 3);
    let newer = names(Some(loaded(2, 500).id()), 3);
    let continues = |claims: &[Claim]| Plan::Continue(StateSource::of(claims).unwrap());
    let torn = [live(2, 37).torn(), FRESH];
    let lost = Lost {
        generation: 2,
        step: 37,
    };
    let fresh = &[FRESH][..];
    let old_live = &[FRESH, live(1, 535)][..];
    let old_loaded = &[loaded(1, 20)][..];
    let new_live = &[live(2, 501), loaded(2, 500)][..];
    let newest = &[loaded(2, 500)][..];
    // The other workers may have trained on without this one.
    let old_copy = &[held(1, 535)][..];
    let new_copy = &[held(2, 501), loaded(2, 500)][..];
    for (claims, volume, expected) in [
        // A spare that has waited in the lobby since the job began.
        (fresh, newer, Plan::Search),
        (old_loaded, newer, Plan::Search),
        (old_live, newer, Plan::Search),
        (&torn[..], newer, Plan::Search),
        (new_live, newer, continues(new_live)),
        (newest, newer, continues(newest)),
        (fresh, none, continues(fresh)),
        (&torn[..], none, Plan::Lost(lost)),
        (fresh, Volume::Silent, Plan::Wait),
        (old_loaded, Volume::Silent, Plan::Wait),
        (&torn[..], Volume::Silent, Plan::Wait),
        (old_live, Volume::Silent, continues(old_live)),
        (old_copy, Volume::Silent, Plan::Wait),
        (old_copy, newer, Plan::Search),
        (new_copy, newer, continues(new_copy)),
        (old_copy, Volume::Absent, continues(old_copy)),
        (fresh, Volume::Absent, continues(fresh)),
        (&torn[..], Volume::Absent, Plan::Lost(lost)),
        // Another process group has this number, or a later one.
        (new_live, names(None, 4), Plan::Fenced(4)),
        (new_live, names(None, 7), Plan::Fenced(7)),
        (&[live(4, 1)][..], Volume::Silent, Plan::Fenced(4)),
    ] {
        assert_eq!(
            Plan::of(claims, &volume, 4),
            expected,
            "{claims:?} {volume:?}"
        );
    }
}

#[test]
fn reader_of_a_checkpoint_has_no_live_state_if_possible() {
    for (has_volume, expected) in [
        ([true, true, true], 1),
        ([true, false, true], 2),
        ([true, false, false], 0),
    ] {
        assert_eq!(plan::finder(&[true, false, false], &has_volume), expected);
    }
}

proptest! {
    #[test]
    fn best_claim_is_greatest_and_origins_round_trip(
        claims in proptest::collection::vec(
            (0_u64..5, 0_u64..4, 0_u64..4)
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
