//! The choice of the rank whose state a new generation continues.

use std::cmp::Ordering;

use crate::checkpoint::CheckpointId;
use crate::ledger::Head;

pub mod layout;
pub mod plan;
pub mod replica;
pub mod routes;

pub use layout::Layout;
pub use plan::{Names, Plan, Volume};
pub use routes::{Hop, Routes};

/// Origin of a rank's state, from worst to best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// The rank lost the connection while it received another rank's state over its own.
    Torn,
    /// The state is the initial weights.
    Fresh,
    /// The state is a checkpoint that the rank can read.
    Loaded,
    /// The state is in memory, from a copy that the worker has kept. Others may have a newer one.
    Held,
    /// The state is in memory, since the rank was a member of a generation.
    Live,
}

impl Origin {
    const ALL: [Self; 5] = [
        Self::Torn,
        Self::Fresh,
        Self::Loaded,
        Self::Held,
        Self::Live,
    ];

    /// Whether the rank has all bytes of the state in memory, and the state has committed steps.
    #[must_use]
    pub const fn is_in_memory(self) -> bool {
        matches!(self, Self::Held | Self::Live)
    }

    /// Returns the number of the origin, for a collective.
    #[must_use]
    pub const fn code(self) -> u64 {
        self as u64
    }

    /// Returns the origin with a number. An unknown number becomes [`Self::Torn`], from
    /// which no generation continues.
    #[must_use]
    pub fn from_code(code: u64) -> Self {
        let known = Self::ALL.into_iter().find(|origin| origin.code() == code);
        known.unwrap_or(Self::Torn)
    }
}

/// The state that a rank declares when a generation forms: its last ledger line, and where it lies.
///
/// The line names the state: ranks with equal lines have equal states, whichever generations they
/// were members of since. The greatest claim wins. A state of a later generation comes first, then
/// the state with more steps. So the steps that a superseded generation still committed do not
/// count. The origin decides only which of equal states is used: a state in memory need not be read
/// from a disk. A torn state comes last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Where the state comes from.
    pub origin: Origin,
    /// The generation that committed the last step; 0 before the first step.
    pub generation: u64,
    /// Number of committed steps.
    pub step: u64,
    /// The first bits of the last line's hash; see [`Digest::number`](crate::Digest::number).
    /// 0 for initial weights.
    pub hash: u64,
}

impl Claim {
    /// The claim of initial weights.
    pub const FRESH: Self = Self {
        origin: Origin::Fresh,
        generation: 0,
        step: 0,
        hash: 0,
    };

    /// Returns the claim of a state whose ledger ends with `head`.
    #[must_use]
    pub const fn of(origin: Origin, head: &Head) -> Self {
        Self {
            origin,
            generation: head.generation,
            step: head.step,
            hash: head.hash.number(),
        }
    }

    /// Name of the state's checkpoint.
    #[must_use]
    pub const fn id(&self) -> CheckpointId {
        CheckpointId {
            generation: self.generation,
            step: self.step,
        }
    }

    /// Returns the claim of a rank that lost the connection while it received this state. Its copy
    /// is unusable, but the rank knows that the state existed.
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

/// The rank that has the state from which a new generation continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateSource {
    /// The claim of that state.
    pub claim: Claim,
    /// Lowest rank that holds the state.
    pub rank: usize,
    /// Whether the state must be sent: because a rank lacks it, because it is on a disk and
    /// one rank reads it for all, or because training has not begun and the initial weights of
    /// the ranks may differ.
    pub must_send: bool,
    /// A newer state that was lost with all ranks that had it. It is reported, because
    /// its steps are repeated.
    pub lost: Option<Lost>,
}

/// A state that was lost with every rank that had it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Generation that committed the state.
    pub generation: u64,
    /// Number of its committed steps.
    pub step: u64,
}

impl StateSource {
    /// Chooses the greatest claim. Claims differ because a collective can succeed on one rank and
    /// fail on another, so some ranks may have committed a step that others have not.
    ///
    /// # Errors
    /// Returns the lost state if only initial weights are left although a rank was receiving a
    /// state of committed steps, or if all states are torn. Starting at step 0 would hide that
    /// the state is lost.
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
            must_send: !best.origin.is_in_memory() || !claims.iter().all(holds),
            lost: lost.filter(|lost| lost.id() > best.id()).map(named),
        })
    }
}

#[cfg(test)]
mod tests;
