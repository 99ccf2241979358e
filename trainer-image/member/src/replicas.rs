//! Checks that all ranks have the same state before a checkpoint takes a part of it from each.
//! Replicas differ after a wrong computation of a device, through a defect, or if a script changes
//! its state by data of one rank. A checkpoint with parts of both would be the state of no step.
//!
//! The ranks exchange one number each, and only if these differ the numbers of all tensors. The
//! check is part of each save, before its first byte, and costs one pass over the state.

use std::fmt;

use roundhouse_elastic::Digest;

use crate::failure::Failure;
use crate::group::Group;
use crate::rank_mismatch::{RankMismatch, Subject};
use crate::state::State;
use crate::world::World;

/// The largest prime below 2^32. No power of two is a multiple of it, so one flipped bit changes
/// the remainder of a sum.
const PRIME: i64 = 4_294_967_291;

/// The difference between the states of the ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The step after which they differ.
    pub step: u64,
    /// The first tensor that differs, by its index in the table.
    pub tensor: usize,
    pub name: String,
    /// The ranks whose state differs.
    pub mismatch: RankMismatch,
}

impl Difference {
    /// The failure of a rank. If more than half of the ranks agree, they continue without the
    /// others. Otherwise all ranks continue from the newest checkpoint, because no rank can know
    /// whose state is right.
    #[must_use]
    pub fn failure_of(self, rank: u32) -> Failure {
        if self.mismatch.is_of_majority(rank) {
            return Failure::PeerLost(self.to_string());
        }
        Failure::ReplicasDiffer(self)
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            step,
            tensor: _,
            name,
            mismatch,
        } = self;
        write!(
            f,
            "the replicas differ after step {step}: {}; no checkpoint was written",
            mismatch.words(Subject::Tensor(name))
        )
    }
}

/// The number of a tensor with this [`sum_of_words`](crate::state_broadcast::sum_of_words).
#[must_use]
pub fn digest(sum_of_words: u64) -> u32 {
    let rest = sum_of_words.cast_signed().rem_euclid(PRIME);
    u32::try_from(rest).unwrap_or_default()
}

/// Compares the states of all ranks after a step. A collective with the same result on all ranks.
///
/// # Errors
/// [`Failure::PeerLost`] if a rank is lost, [`Failure::State`] if the state cannot be read.
pub fn compare<G: Group, S: State>(
    world: &World<G>,
    state: &S,
    step: u64,
) -> Result<Option<Difference>, Failure> {
    if world.size() == 1 {
        return Ok(None);
    }
    let digests = state.digests()?;
    let bytes: Vec<u8> = digests.iter().flat_map(|it| it.to_le_bytes()).collect();
    let all = world.of_each(Digest::of(&[&bytes]).number() as f64)?;
    let num_shards = world.num_shards();
    if num_shards > 1 {
        let difference = RankMismatch::of_shards(&all, num_shards).map(|(shard, mismatch)| {
            let name = format!("the part of the state in process {shard}");
            Difference {
                step,
                tensor: 0,
                name,
                mismatch,
            }
        });
        return Ok(difference);
    }
    let Some(mismatch) = RankMismatch::of(&all) else {
        return Ok(None);
    };
    let is_reference = world.rank() == mismatch.reference();
    let reference = digests
        .iter()
        .map(|it| if is_reference { f64::from(*it) } else { 0.0 });
    let of_reference = world.sum(&reference.collect::<Vec<_>>())?;
    let first = digests
        .iter()
        .zip(&of_reference)
        .position(|(own, its)| (f64::from(*own) - its).abs() > 0.5);
    // Index of this rank's first tensor that differs, plus one; 0 if none does.
    let firsts = world.of_each(first.map_or(0.0, |place| place as f64 + 1.0))?;
    let first = firsts.into_iter().filter(|place| *place > 0.5);
    let tensor = whole(first.fold(f64::INFINITY, f64::min) - 1.0);
    let table = state.table()?;
    let name = table.views().get(tensor).map(|view| view.name.clone());
    Ok(Some(Difference {
        step,
        tensor,
        name: name.unwrap_or_default(),
        mismatch,
    }))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a place in a list"
)]
fn whole(place: f64) -> usize {
    if place.is_finite() {
        place.max(0.0).round() as usize
    } else {
        0
    }
}

#[cfg(test)]
mod tests;
