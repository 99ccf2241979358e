//! What the processes of a replica claim together.

use super::{Claim, Origin};

/// The claims of the ranks with that of its replica for each of them. A replica has `num_shards`
/// consecutive ranks, each with a part of the state.
///
/// A replica has a state if each of its processes has its part of it, and a checkpoint if one of
/// them has found it, because all of them can read it. In every other case its state is torn.
#[must_use]
pub fn claims_of_replicas(claims: &[Claim], num_shards: usize) -> Vec<Claim> {
    let of_replica = |own: &[Claim]| {
        let (Some(greatest), Some(first)) = (own.iter().max(), own.first()) else {
            return Claim::FRESH;
        };
        if own.iter().all(|claim| claim == first) {
            return *first;
        }
        let found = own.iter().filter(|claim| claim.origin == Origin::Loaded);
        // The newest state that any process claims, whole or torn: not all of them have it.
        let known = own.iter().map(Claim::id).max();
        let lost = own.iter().find(|claim| Some(claim.id()) == known);
        found
            .max()
            .copied()
            .unwrap_or_else(|| lost.unwrap_or(greatest).torn())
    };
    claims
        .chunks(num_shards.max(1))
        .flat_map(|own| std::iter::repeat_n(of_replica(own), own.len()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn claim(origin: Origin, step: u64) -> Claim {
        Claim {
            origin,
            generation: if step == 0 { 0 } else { 1 },
            step,
            hash: step,
        }
    }

    #[test]
    fn replica_has_a_state_only_if_each_process_has_its_part() {
        let live = |step| claim(Origin::Live, step);
        let loaded = |step| claim(Origin::Loaded, step);
        let torn = |step| claim(Origin::Torn, step);
        let held = |step| claim(Origin::Held, step);
        let fresh = Claim::FRESH;
        for (claims, expected) in [
            ([live(7), live(7)], live(7)),
            ([fresh, fresh], fresh),
            ([loaded(5), loaded(5)], loaded(5)),
            ([torn(7), torn(7)], torn(7)),
            // One process has received its part, and the other has not.
            ([live(7), fresh], torn(7)),
            ([fresh, live(7)], torn(7)),
            ([live(7), torn(7)], torn(7)),
            ([live(6), torn(7)], torn(7)),
            // One process has found a checkpoint, which both can read.
            ([loaded(5), fresh], loaded(5)),
            ([torn(7), loaded(5)], loaded(5)),
            ([live(4), loaded(5)], loaded(5)),
            ([loaded(4), loaded(5)], loaded(5)),
            ([held(7), held(7)], held(7)),
            // The part of one process was damaged, or it has found a newer checkpoint.
            ([held(7), fresh], torn(7)),
            ([held(7), held(5)], torn(7)),
            ([held(7), loaded(9)], loaded(9)),
        ] {
            assert_eq!(claims_of_replicas(&claims, 2), [expected; 2], "{claims:?}");
        }
        let claims = [live(7), torn(7), live(7), live(7)];
        let expected = [torn(7), torn(7), live(7), live(7)];
        assert_eq!(claims_of_replicas(&claims, 2), expected);
        assert_eq!(claims_of_replicas(&claims, 1), claims);
    }
}
