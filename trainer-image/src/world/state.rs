//! What the ranks of a new generation tell each other before its first step.

use roundhouse_elastic::{Claim, Origin, StateSource};

use super::{World, whole};
use crate::failure::Failure;

/// What the ranks of a new generation agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Who has the state to go on with.
    pub source: StateSource,
    /// Bytes of unwritten ledger that come with it.
    pub chain_bytes: usize,
    /// What is added to the job's generations. Who could not read it on the volume has a lower one.
    pub first_generation: u64,
}

/// Numbers that one rank's [`Claim`] takes, with the length of its chain and its first generation.
const CLAIM: usize = 5;

impl World {
    /// Who has the state to go on with, given what each rank says of its own and of the length of its
    /// unwritten ledger, and from where the job's generations are counted: the highest that any says.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when a rank is gone, [`Failure::StateLost`] when all states are torn.
    pub fn agree_on_state(
        &self,
        own: &Claim,
        chain_bytes: usize,
        first_generation: u64,
    ) -> Result<Agreed, Failure> {
        let Claim {
            origin,
            generation,
            step,
        } = *own;
        // Each rank has slots of its own.
        let mut values = vec![0.0; CLAIM * self.size as usize];
        let numbers = [
            origin.code(),
            generation,
            step,
            chain_bytes as u64,
            first_generation,
        ];
        let own = numbers.map(|value| value as f64);
        values[CLAIM * self.rank as usize..][..CLAIM].copy_from_slice(&own);
        let sums: Vec<u64> = self.sum(&values)?.into_iter().map(whole).collect();
        let claims: Vec<Claim> = sums
            .chunks_exact(CLAIM)
            .map(|slots| Claim {
                origin: Origin::from_code(slots[0]),
                generation: slots[1],
                step: slots[2],
            })
            .collect();
        let source = StateSource::of(&claims).ok_or(Failure::StateLost)?;
        let chain_bytes = sums[CLAIM * source.rank + 3];
        let first_generations = sums.iter().skip(4).step_by(CLAIM);
        Ok(Agreed {
            source,
            chain_bytes: usize::try_from(chain_bytes).unwrap_or_default(),
            first_generation: first_generations.copied().max().unwrap_or_default(),
        })
    }
}
