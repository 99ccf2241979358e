//! Whether all ranks have the same state where a checkpoint takes a part of it from each. A device that computes wrong, a
//! defect, or a script that changes its state by what only one rank knows makes replicas that differ; a checkpoint of
//! parts of both is the state of no step.
//!
//! The ranks exchange one number each, and only if these differ the numbers of all tensors. It is a part of each save,
//! before its first byte: what it costs is one pass over the state per checkpoint.

use std::fmt;

use roundhouse_elastic::Digest;

use crate::failure::Failure;
use crate::group::Group;
use crate::state::State;
use crate::world::World;

/// The largest prime below 2^32: no power of two is a multiple of it, so one flipped bit changes what is left of a sum.
const PRIME: i64 = 4_294_967_291;

/// Where the states of the ranks differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// After this step.
    pub step: u64,
    /// The first tensor that differs, by its place in the table.
    pub tensor: usize,
    /// Its name.
    pub name: String,
    /// A rank that the others are compared with: of most ranks, or rank 0 if no state is that of more than half of them.
    pub reference: u32,
    /// The ranks whose state differs from it.
    pub ranks: Vec<u32>,
    /// Whether more than half of the ranks have the state of the reference.
    pub has_majority: bool,
}

impl Difference {
    /// What it means for a rank. If more than half of the ranks agree, they continue without the others. Else all
    /// continue from the newest checkpoint: no rank can know whose state is right.
    #[must_use]
    pub fn failure_of(self, rank: u32) -> Failure {
        if self.has_majority && !self.ranks.contains(&rank) {
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
            reference,
            ranks,
            has_majority,
        } = self;
        let whose = match ranks.as_slice() {
            [rank] => format!("rank {rank}"),
            ranks => {
                let ranks: Vec<String> = ranks.iter().map(u32::to_string).collect();
                format!("ranks {}", ranks.join(", "))
            }
        };
        write!(
            f,
            "the replicas differ after step {step}: {name} of {whose} is not that of rank {reference}"
        )?;
        if *has_majority {
            f.write_str(" and of most ranks")?;
        }
        f.write_str("; no checkpoint was written")
    }
}

/// The number of a tensor with this [`sum_of_words`](crate::share::sum_of_words).
#[must_use]
pub fn digest(sum_of_words: u64) -> u32 {
    let rest = sum_of_words.cast_signed().rem_euclid(PRIME);
    u32::try_from(rest).unwrap_or_default()
}

/// Compares the states of all ranks after a step. A collective; all ranks come to the same result.
///
/// # Errors
/// [`Failure::PeerLost`] when a rank is gone, [`Failure::State`] when the state cannot be read.
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
    let Compared {
        reference,
        has_majority,
        ranks,
    } = Compared::of(&all);
    if ranks.is_empty() {
        return Ok(None);
    }
    let is_reference = world.rank() == reference;
    let told = digests
        .iter()
        .map(|it| if is_reference { f64::from(*it) } else { 0.0 });
    let of_reference = world.sum(&told.collect::<Vec<_>>())?;
    let first = digests
        .iter()
        .zip(&of_reference)
        .position(|(own, its)| (f64::from(*own) - its).abs() > 0.5);
    // One more than the place of this rank's first tensor that differs; 0: none does.
    let firsts = world.of_each(first.map_or(0.0, |place| place as f64 + 1.0))?;
    let first = firsts.into_iter().filter(|place| *place > 0.5);
    let tensor = whole(first.fold(f64::INFINITY, f64::min) - 1.0);
    let table = state.table()?;
    let name = table.views().get(tensor).map(|view| view.name.clone());
    Ok(Some(Difference {
        step,
        tensor,
        name: name.unwrap_or_default(),
        reference,
        ranks,
        has_majority,
    }))
}

/// Numbers of all ranks that should be the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compared {
    /// A rank that the others are compared with: of most ranks, or rank 0 if more than half of them do not agree.
    pub reference: u32,
    /// Whether more than half of the ranks have its number.
    pub has_majority: bool,
    /// The ranks that have another number.
    pub ranks: Vec<u32>,
}

impl Compared {
    /// Compares whole numbers, one for each rank.
    #[must_use]
    pub fn of(all: &[f64]) -> Self {
        let is_most = |own: &f64| 2 * num_equal(all, *own) > all.len();
        let most = all.iter().position(is_most);
        let reference = u32::try_from(most.unwrap_or_default()).unwrap_or_default();
        Self {
            reference,
            has_majority: most.is_some(),
            ranks: others(all, reference),
        }
    }
}

fn num_equal(all: &[f64], own: f64) -> usize {
    all.iter().filter(|it| is_equal(**it, own)).count()
}

/// The ranks whose number differs from that of the reference.
fn others(all: &[f64], reference: u32) -> Vec<u32> {
    let Some(its) = all.get(reference as usize) else {
        return Vec::new();
    };
    let ranks = (0..).zip(all);
    ranks
        .filter_map(|(rank, own)| (!is_equal(*own, *its)).then_some(rank))
        .collect()
}

/// Of whole numbers.
fn is_equal(left: f64, right: f64) -> bool {
    (left - right).abs() < 0.5
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
