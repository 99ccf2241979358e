//! Which rank has the state that a new generation continues with.

use std::cmp::Ordering;

use crate::checkpoint::CheckpointId;
use crate::ledger::Head;

pub mod plan;
pub mod routes;

pub use plan::{Names, Plan, Volume};
pub use routes::{Hop, Routes};

/// Where the state that a rank holds comes from, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The rank was cut off while it received another's state over its own.
    Torn,
    /// Initial weights.
    Fresh,
    /// A checkpoint that the rank can read.
    Loaded,
    /// In memory, since it was a member of a world.
    Live,
}

impl Origin {
    const ALL: [Self; 4] = [Self::Torn, Self::Fresh, Self::Loaded, Self::Live];

    /// A number for a collective.
    #[must_use]
    pub const fn code(self) -> u64 {
        self as u64
    }

    /// The origin of a number. A number that no origin has is taken for [`Self::Torn`], with which nothing continues.
    #[must_use]
    pub fn from_code(code: u64) -> Self {
        let known = Self::ALL.into_iter().find(|origin| origin.code() == code);
        known.unwrap_or(Self::Torn)
    }
}

/// What a rank says of its state: how far it is, by the last line of its ledger, and where it lies.
///
/// The line names the state: ranks with equal lines have equal states, whatever generations they were members of since.
/// Greater is better. A state of a later generation comes first, then the one with more steps: what a superseded
/// generation committed after it was left behind does not count. Where a state lies decides only which of equal states
/// is used: one in memory needs not be read from a disk. A torn state comes last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Where it comes from.
    pub origin: Origin,
    /// The generation that committed its last step; 0 before the first step.
    pub generation: u64,
    /// Committed steps.
    pub step: u64,
    /// The first bits of the last line's hash; see [`Digest::number`](crate::Digest::number). 0 for initial weights.
    pub hash: u64,
}

impl Claim {
    /// Initial weights.
    pub const FRESH: Self = Self {
        origin: Origin::Fresh,
        generation: 0,
        step: 0,
        hash: 0,
    };

    /// A state whose ledger ends with `head`.
    #[must_use]
    pub const fn of(origin: Origin, head: &Head) -> Self {
        Self {
            origin,
            generation: head.generation,
            step: head.step,
            hash: head.hash.number(),
        }
    }

    /// The name of its checkpoint.
    #[must_use]
    pub const fn id(&self) -> CheckpointId {
        CheckpointId {
            generation: self.generation,
            step: self.step,
        }
    }

    /// What a rank says that was cut off while it received this state: nothing can continue with what it has, but it
    /// knows which state there was.
    #[must_use]
    pub const fn torn(self) -> Self {
        Self {
            origin: Origin::Torn,
            ..self
        }
    }

    const fn worth(&self) -> (bool, u64, u64, Origin, u64) {
        let is_whole = !matches!(self.origin, Origin::Torn);
        (is_whole, self.generation, self.step, self.origin, self.hash)
    }
}

impl Ord for Claim {
    fn cmp(&self, other: &Self) -> Ordering {
        self.worth().cmp(&other.worth())
    }
}

impl PartialOrd for Claim {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Which rank has the state that a new generation continues with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSource {
    /// What the best state is.
    pub claim: Claim,
    /// Lowest rank that holds it.
    pub rank: usize,
    /// Whether it has to be sent: a rank lacks it, or it is on a disk, which one rank reads for all, or training
    /// has not begun, since no rank's initial weights are taken on trust.
    pub must_send: bool,
    /// A newer state that all ranks that had it are gone with. It is worth telling: its steps are done again.
    pub lost: Option<Lost>,
}

/// A state that every rank which had it is gone with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Generation that committed it.
    pub generation: u64,
    /// Its committed steps.
    pub step: u64,
}

impl StateSource {
    /// The greatest claim wins: a collective can succeed on one rank and fail on another, so some ranks may have
    /// committed a step that others have not.
    ///
    /// # Errors
    /// What is lost, if there are only initial weights to continue with although some rank was receiving a state of
    /// committed steps, or nothing at all. To begin at step 0 then would hide that the training's state is gone.
    pub fn of(claims: &[Claim]) -> Result<Self, Lost> {
        let torn = claims.iter().filter(|claim| claim.origin == Origin::Torn);
        let lost = torn.max().filter(|claim| claim.step > 0);
        let named = |claim: &Claim| Lost {
            generation: claim.generation,
            step: claim.step,
        };
        let best = claims.iter().filter(|claim| claim.origin != Origin::Torn);
        let best = match (best.max(), lost) {
            (Some(best), None) => *best,
            (Some(best), Some(_)) if best.step > 0 => *best,
            (_, lost) => return Err(named(lost.unwrap_or(&Claim::FRESH))),
        };
        let holds = |claim: &Claim| *claim == best;
        Ok(Self {
            claim: best,
            rank: claims.iter().position(holds).unwrap_or_default(),
            must_send: best.origin != Origin::Live || !claims.iter().all(holds),
            lost: lost.filter(|lost| lost.id() > best.id()).map(named),
        })
    }
}

#[cfg(test)]
mod tests;
