//! What the ranks of a new generation tell each other before its first step.

use roundhouse_elastic::state::{Lost, StateSource};
use roundhouse_elastic::{Claim, Learned, Origin};

use super::{World, whole};
use crate::failure::Failure;
use crate::group::Group;

/// What one rank brings to a new generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Own {
    /// Its state.
    pub claim: Claim,
    /// Bytes of unwritten ledger that go with it.
    pub chain_bytes: usize,
    /// What it adds to the job's generations.
    pub first_generation: u64,
    /// Committed samples at its last evaluation.
    pub evaluated: u64,
    /// Whether an evaluation changes the state.
    pub evaluation_counts: bool,
    /// What it knows of steps.
    pub learned: Learned,
}

/// What the ranks of a new generation agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Which rank has the state to continue with.
    pub source: StateSource,
    /// Bytes of unwritten ledger that come with it.
    pub chain_bytes: usize,
    /// What is added to the job's generations: the highest that a rank gives. One that could not read it on the
    /// volume gives a lower one.
    pub first_generation: u64,
    /// Committed samples at the last evaluation of the rank that has the state.
    pub evaluated: u64,
    /// Whether an evaluation changes the state, as any rank says.
    pub evaluation_counts: bool,
    /// What the ranks know of steps: the longest that any of them has seen.
    pub learned: Learned,
}

/// Numbers that an [`Own`] takes.
const OWN: usize = 10;

impl<G: Group> World<G> {
    /// Which rank has the state to continue with and what goes with it, and from where the job's generations are
    /// counted. All ranks get the same answer; the inner error is a state that is lost.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when a rank is gone.
    pub fn agree_on_state(&self, own: &Own) -> Result<Result<Agreed, Lost>, Failure> {
        let Own {
            claim:
                Claim {
                    origin,
                    generation,
                    step,
                    hash,
                },
            chain_bytes,
            first_generation,
            evaluated,
            evaluation_counts,
            learned,
        } = *own;
        let [first_step, longest_step] = learned.in_world_of(self.size).to_millis();
        // Each rank has slots of its own.
        let mut values = vec![0.0; OWN * self.size as usize];
        let numbers = [
            origin.code(),
            generation,
            step,
            chain_bytes as u64,
            first_generation,
            evaluated,
            first_step,
            longest_step,
            u64::from(evaluation_counts),
            hash,
        ];
        let own = numbers.map(|value| value as f64);
        values[OWN * self.rank as usize..][..OWN].copy_from_slice(&own);
        let sums: Vec<u64> = self.sum(&values)?.into_iter().map(whole).collect();
        let claims: Vec<Claim> = sums
            .chunks_exact(OWN)
            .map(|slots| Claim {
                origin: Origin::from_code(slots[0]),
                generation: slots[1],
                step: slots[2],
                hash: slots[9],
            })
            .collect();
        let highest = |place| {
            let of_ranks = sums.iter().skip(place).step_by(OWN);
            of_ranks.copied().max().unwrap_or_default()
        };
        let evaluation_counts = highest(8) > 0;
        let evaluated: Vec<u64> = sums.iter().skip(5).step_by(OWN).copied().collect();
        let source = StateSource::of(&claims).map(|source| {
            if evaluation_counts {
                of_evaluated(source, &claims, &evaluated)
            } else {
                source
            }
        });
        Ok(source.map(|source| Agreed {
            source,
            evaluation_counts,
            chain_bytes: usize::try_from(sums[OWN * source.rank + 3]).unwrap_or_default(),
            first_generation: highest(4),
            evaluated: sums[OWN * source.rank + 5],
            learned: Learned::of_millis([highest(6), highest(7)], self.size),
        }))
    }
}

/// Of the ranks that have the best state, one that was evaluated last: a collective can succeed on one rank and fail on another, so
/// an evaluation can have changed the state of some of them alone.
fn of_evaluated(source: StateSource, claims: &[Claim], evaluated: &[u64]) -> StateSource {
    let holders = || {
        let all = claims.iter().zip(evaluated).enumerate();
        all.filter(|(_, (claim, _))| **claim == source.claim)
    };
    let last = holders().map(|(_, (_, at))| *at).max();
    let of_last = holders().find(|(_, (_, at))| Some(**at) == last);
    let differ = holders().any(|(_, (_, at))| Some(*at) != last);
    StateSource {
        rank: of_last.map_or(source.rank, |(rank, _)| rank),
        must_send: source.must_send || differ,
        ..source
    }
}
