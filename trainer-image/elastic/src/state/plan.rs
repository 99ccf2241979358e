//! What the ranks of a new generation do about the state, after each round in which they tell each other what they have.

use super::{Claim, Lost, Origin, StateSource};
use crate::checkpoint::CheckpointId;

/// What is known of the checkpoint volume while a generation forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Volume {
    /// The training has none.
    Absent,
    /// It has not answered yet.
    Silent,
    /// It has answered.
    Names(Names),
}

/// The names on the volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// The newest checkpoint, unless it was searched for and is among the claims.
    pub checkpoint: Option<CheckpointId>,
    /// The newest generation that has written; 0 if none has.
    pub generation: u64,
}

/// What all ranks do next. Each draws the same conclusion from the same claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Share this state, and train.
    Continue(StateSource),
    /// The volume has a newer checkpoint than every rank: one rank finds it and claims it, then all agree again.
    Search,
    /// Ask the volume again: a newer checkpoint may be on it, and no rank has a state in memory.
    Wait,
    /// The state is gone, and there is no checkpoint.
    Lost(Lost),
    /// A world of this generation, or of a later one, has written or committed steps: this one must not.
    Fenced(u64),
}

impl Plan {
    /// What the ranks of `generation` do.
    ///
    /// A state in memory is continued with on a volume that does not answer: a training that runs does not stop for it.
    /// Nothing else is: training neither begins nor continues with an older state before the volume has answered.
    #[must_use]
    pub fn of(claims: &[Claim], volume: &Volume, generation: u64) -> Self {
        let source = StateSource::of(claims);
        let claimed = source.map_or(0, |source| source.claim.generation);
        let written = match volume {
            Volume::Names(names) => names.generation,
            Volume::Absent | Volume::Silent => 0,
        };
        if claimed.max(written) >= generation {
            return Self::Fenced(claimed.max(written));
        }
        let is_live = source.is_ok_and(|source| source.claim.origin == Origin::Live);
        match volume {
            Volume::Silent if !is_live => return Self::Wait,
            Volume::Names(Names {
                checkpoint: Some(newest),
                ..
            }) if source.map_or(true, |source| *newest > source.claim.id()) => {
                return Self::Search;
            }
            Volume::Absent | Volume::Silent | Volume::Names(_) => {}
        }
        match source {
            Ok(source) => Self::Continue(source),
            Err(lost) => Self::Lost(lost),
        }
    }
}

/// The rank that searches the volume and reads the checkpoint: the lowest one that has no state in memory, since reading
/// overwrites that, or else the lowest. `is_live` says which ranks have one, `has_volume` which ranks can read.
#[must_use]
pub fn finder(is_live: &[bool], has_volume: &[bool]) -> usize {
    let ranks = || {
        let all = is_live.iter().zip(has_volume).enumerate();
        all.filter(|(_, (_, has_volume))| **has_volume)
    };
    let without = ranks().find(|(_, (is_live, _))| !**is_live);
    let found = without.or_else(|| ranks().next());
    found.map_or(0, |(rank, _)| rank)
}
