//! The next action of the ranks of a new generation, after each round in which they exchange their
//! claims.

use super::{Claim, Lost, Origin, StateSource};
use crate::checkpoint::CheckpointId;

/// The checkpoint volume, as far as it is known while a generation forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Volume {
    /// The training has no volume.
    Absent,
    /// The volume has not answered yet.
    Silent,
    /// The volume has answered.
    Names(Names),
}

/// The newest names on the volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// The newest checkpoint, unless a rank has found it already and claims it.
    pub checkpoint: Option<CheckpointId>,
    /// The newest generation that has written to the volume; 0 if none has.
    pub generation: u64,
}

/// The next action of all ranks. Each rank decides the same from the same claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Send this state to the ranks that lack it, and train.
    Continue(StateSource),
    /// The volume has a newer checkpoint than every rank. One rank finds it and claims it; then
    /// the ranks agree again.
    Search,
    /// Ask the volume again: no rank has a state in memory, and the volume may
    /// have a newer checkpoint.
    Wait,
    /// The state is lost, and there is no checkpoint.
    Lost(Lost),
    /// A process group of this generation or a newer one has written or committed steps, so
    /// this one must not.
    Fenced(u64),
}

impl Plan {
    /// Decides the next action of the ranks of `generation`.
    ///
    /// If the volume does not answer, only a state in memory is continued, so a running
    /// training does not stop. A training neither begins nor continues with an older state
    /// before the volume has answered.
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

/// Returns the rank that searches the volume and reads the checkpoint: the lowest rank without a
/// state in memory, because reading overwrites that state, or else the lowest rank. `is_live`
/// states which ranks have a state in memory, `has_volume` which ranks can read.
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
