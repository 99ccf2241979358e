//! Who has the state that a new generation goes on with.

/// Where the state that a rank holds comes from, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// It was cut off while it received another's.
    Torn,
    /// Initial weights.
    Fresh,
    /// From a checkpoint.
    Loaded,
    /// Held since it was a member of a world.
    Live,
}

impl Origin {
    const ALL: [Self; 4] = [Self::Torn, Self::Fresh, Self::Loaded, Self::Live];

    /// A number for a collective.
    #[must_use]
    pub const fn code(self) -> u64 {
        self as u64
    }

    /// The origin of a number; what no origin has is as good as nothing.
    #[must_use]
    pub fn from_code(code: u64) -> Self {
        let known = Self::ALL.into_iter().find(|origin| origin.code() == code);
        known.unwrap_or(Self::Torn)
    }
}

/// What a rank says of its state. Greater is better, field by field:
///
/// A state that a process kept beats any from a disk, because a world of one step more than the last
/// checkpoint is still there. Among equals the generation decides before the step: what a superseded
/// generation committed after it was left behind is not gone on with, however much it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    /// Where it comes from.
    pub origin: Origin,
    /// The last generation that it was a member's state of; 0 before the first.
    pub generation: u64,
    /// Committed steps.
    pub step: u64,
}

impl Claim {
    /// Initial weights.
    pub const FRESH: Self = Self {
        origin: Origin::Fresh,
        generation: 0,
        step: 0,
    };

    /// The same once it cannot be gone on with.
    #[must_use]
    pub const fn torn(self) -> Self {
        Self {
            origin: Origin::Torn,
            ..self
        }
    }
}

/// Who has the state that a new generation goes on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSource {
    /// What the best state is.
    pub claim: Claim,
    /// Lowest rank that holds it.
    pub rank: usize,
    /// Whether somebody lacks it, so that it has to be sent. A training that has not begun is
    /// sent always: nobody's initial weights are taken on trust.
    pub must_send: bool,
}

impl StateSource {
    /// The greatest claim wins: a collective can succeed on one rank and fail on another, so some
    /// may have committed a step that others have not. `None` if all states are torn.
    #[must_use]
    pub fn of(claims: &[Claim]) -> Option<Self> {
        let best = *claims.iter().max()?;
        if best.origin == Origin::Torn {
            return None;
        }
        let holds = |claim: &Claim| *claim == best;
        Some(Self {
            claim: best,
            rank: claims.iter().position(holds)?,
            must_send: best.origin == Origin::Fresh || !claims.iter().all(holds),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{Strategy, prop_assert, prop_assert_eq, proptest};

    use super::*;

    const fn claim(origin: Origin, generation: u64, step: u64) -> Claim {
        Claim {
            origin,
            generation,
            step,
        }
    }

    const fn live(generation: u64, step: u64) -> Claim {
        claim(Origin::Live, generation, step)
    }

    const fn loaded(generation: u64, step: u64) -> Claim {
        claim(Origin::Loaded, generation, step)
    }

    fn source(claims: &[Claim]) -> (usize, bool) {
        let source = StateSource::of(claims).unwrap();
        assert_eq!(source.claim, claims[source.rank]);
        (source.rank, source.must_send)
    }

    #[test]
    fn the_lowest_rank_with_the_most_steps_sends_its_state() {
        let torn = live(1, 9).torn();
        assert_eq!(
            source(&[live(1, 6), live(1, 7), torn, live(1, 7)]),
            (1, true)
        );
    }

    #[test]
    fn equal_states_need_no_sending_once_training_has_begun() {
        assert_eq!(source(&[live(1, 7), live(1, 7)]), (0, false));
        assert_eq!(source(&[loaded(1, 7), loaded(1, 7)]), (0, false));
        assert_eq!(source(&[Claim::FRESH, Claim::FRESH]), (0, true));
    }

    #[test]
    fn a_state_that_a_process_kept_beats_any_from_a_disk() {
        assert_eq!(source(&[loaded(9, 900), live(2, 7)]), (1, true));
    }

    #[test]
    fn a_loaded_state_beats_a_fresh_one_and_a_newer_checkpoint_an_older() {
        assert_eq!(source(&[Claim::FRESH, loaded(1, 3)]), (1, true));
        assert_eq!(source(&[loaded(1, 30), loaded(2, 20)]), (1, true));
    }

    #[test]
    fn what_a_superseded_generation_committed_is_not_gone_on_with() {
        assert_eq!(source(&[live(2, 50), live(3, 40)]), (1, true));
    }

    #[test]
    fn a_torn_state_is_never_gone_on_with() {
        let torn = live(5, 50).torn();
        assert_eq!(source(&[torn, Claim::FRESH]), (1, true));
        assert_eq!(StateSource::of(&[torn, torn]), None);
        assert_eq!(StateSource::of(&[]), None);
    }

    proptest! {
        #[test]
        fn the_best_is_beaten_by_nobody_and_every_origin_reads_back(
            claims in proptest::collection::vec(
                (0_u64..4, 0_u64..4, 0_u64..4)
                    .prop_map(|(code, generation, step)| claim(Origin::from_code(code), generation, step)),
                1..6,
            ),
        ) {
            match StateSource::of(&claims) {
                None => prop_assert!(claims.iter().all(|claim| claim.origin == Origin::Torn)),
                Some(source) => {
                    prop_assert!(claims.iter().all(|claim| *claim <= source.claim));
                    prop_assert!(claims[..source.rank].iter().all(|claim| *claim < source.claim));
                }
            }
            for claim in claims {
                prop_assert_eq!(Origin::from_code(claim.origin.code()), claim.origin);
            }
        }
    }
}
