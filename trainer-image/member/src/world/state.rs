//! What the ranks of a new generation tell each other before its first step.

use std::time::Duration;

use roundhouse_elastic::CheckpointId;
use roundhouse_elastic::saving::{Carried, continued};
use roundhouse_elastic::state::plan::finder;
use roundhouse_elastic::state::{Lost, Names, Plan, Routes, StateSource, Volume};
use roundhouse_elastic::{Claim, Learned, Origin};

use super::since_commit::{SinceCommit, SinceCommits};
use super::{World, whole};
use crate::failure::Failure;
use crate::group::Group;

/// What one rank brings to a new generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Own {
    /// Its state, or the checkpoint that it has found if that is newer.
    pub claim: Claim,
    /// Whether it has a state in memory.
    pub is_live: bool,
    /// How long no checkpoint has been completed, and whether a save was abandoned.
    pub debt: (Duration, bool),
    /// The save that it has in flight.
    pub carried: Option<Carried>,
    /// Bytes of unwritten ledger that go with it.
    pub chain_bytes: usize,
    /// What it adds to the job's generations.
    pub first_generation: u64,
    /// What it has done with its state since its last commit.
    pub since_commit: SinceCommit,
    /// What it knows of steps.
    pub learned: Learned,
    /// What it knows of the volume. Only rank 0 looks, so from the others it says whether they have one.
    pub volume: Volume,
    /// Whether it has heard of a newer generation, or leaves.
    pub is_superseded: bool,
}

/// What the ranks of a new generation conclude from a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Concluded {
    /// Share the state, and train.
    Continue(Box<Agreed>),
    /// One rank searches the volume. See [`Plan::Search`].
    Search(Search),
    /// See [`Plan::Wait`].
    Wait,
    /// See [`Plan::Lost`].
    Lost(Lost),
    /// See [`Plan::Fenced`].
    Fenced {
        /// The number that was found.
        newer: u64,
        /// What is added to the job's generations.
        first_generation: u64,
    },
    /// A rank knows that this generation is pointless.
    Superseded,
}

/// Which rank searches the volume for its newest checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Search {
    /// The rank.
    pub finder: usize,
    /// Whether training cannot continue without it: no rank has a state in memory.
    pub must_find: bool,
}

/// What the ranks of a new generation agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Which rank has the state to continue with.
    pub source: StateSource,
    /// Which rank sends the state to which.
    pub routes: Routes,
    /// Bytes of unwritten ledger that come with the state on this rank's way.
    pub chain_bytes: usize,
    /// What is added to the job's generations: the highest that a rank gives. One that could not read it on the
    /// volume gives a lower one.
    pub first_generation: u64,
    /// Committed samples at the last evaluation of the rank that has the state.
    pub evaluated: u64,
    /// What the ranks know of steps: the longest that any of them has seen.
    pub learned: Learned,
    /// How long no checkpoint has been completed, by the rank that knows the longest time, and whether a save of any rank
    /// was abandoned.
    pub debt: (Duration, bool),
    /// The save in flight that the generation continues.
    pub continued: Option<Carried>,
    /// What to do if the state is a checkpoint that turns out to be damaged.
    pub otherwise: Search,
}

/// Numbers that an [`Own`] takes.
pub(crate) const OWN: usize = 22;
/// A number that a sum carries exactly.
const LONGEST_MILLIS: u64 = 1 << 52;

impl<G: Group> World<G> {
    /// What the ranks of the job's `generation` do: which of them has the state to continue with and what goes with it,
    /// and from where the job's generations are counted. All ranks get the same answer, but for the bytes that come their
    /// way. Each worker has `procs_per_worker` ranks.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when a rank is gone.
    pub fn agree_on_state(
        &self,
        own: &Own,
        generation: u64,
        procs_per_worker: u32,
    ) -> Result<Concluded, Failure> {
        // Each rank has slots of its own.
        let mut values = vec![0.0; OWN * self.size as usize];
        let numbers = self.numbers_of(own);
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
        let highest = |place| slots_of(&sums, place).max().unwrap_or_default();
        if highest(14) > 0 {
            return Ok(Concluded::Superseded);
        }
        let first_generation = highest(4);
        let has_volume: Vec<bool> = slots_of(&sums, 10).map(|code| code > 0).collect();
        let is_live: Vec<bool> = slots_of(&sums, 15).map(|it| it > 0).collect();
        let search = Search {
            finder: finder(&is_live, &has_volume),
            must_find: !is_live.contains(&true),
        };
        let volume = from_numbers([sums[10], sums[11], sums[12], sums[13]]);
        let source = match Plan::of(&claims, &volume, first_generation + generation) {
            Plan::Continue(source) => source,
            Plan::Search => return Ok(Concluded::Search(search)),
            Plan::Wait => return Ok(Concluded::Wait),
            Plan::Lost(lost) => return Ok(Concluded::Lost(lost)),
            Plan::Fenced(newer) => {
                return Ok(Concluded::Fenced {
                    newer,
                    first_generation,
                });
            }
        };
        let since = SinceCommits {
            evaluated: slots_of(&sums, 5).collect(),
            evaluation_counts: highest(8) > 0,
            is_cut_short: slots_of(&sums, 18).map(|it| it > 0).collect(),
        };
        let source = since.furthest(source, &claims);
        let routes = routes_of(source, &claims, &since, procs_per_worker);
        let carried: Vec<_> = sums.chunks_exact(OWN).map(carried_of).collect();
        let continued = continued(&carried, &claims[0], &source.claim);
        let is_abandoned = continued.is_none() && carried.iter().any(Option::is_some);
        let head = routes.hop(self.rank as usize);
        let head = head.map_or(source.rank, |hop| hop.head);
        Ok(Concluded::Continue(Box::new(Agreed {
            source,
            routes,
            chain_bytes: usize::try_from(sums[OWN * head + 3]).unwrap_or_default(),
            first_generation,
            evaluated: since.evaluated[source.rank],
            learned: Learned::of_millis([highest(6), highest(7)], self.size),
            debt: (
                Duration::from_millis(highest(16)),
                highest(17) > 0 || is_abandoned,
            ),
            continued,
            otherwise: search,
        })))
    }

    /// What a rank reports of itself, in the order of its slots.
    fn numbers_of(&self, own: &Own) -> [u64; OWN] {
        let Own {
            claim:
                Claim {
                    origin,
                    generation: committed_by,
                    step,
                    hash,
                },
            chain_bytes,
            first_generation,
            since_commit:
                SinceCommit {
                    evaluated,
                    evaluation_counts,
                    is_cut_short,
                },
            learned,
            is_live,
            debt: (unsaved, is_owed),
            carried,
            volume,
            is_superseded,
        } = *own;
        let unsaved = u64::try_from(unsaved.as_millis()).unwrap_or(u64::MAX);
        let [answered, newest, newest_step, written] = to_numbers(&volume);
        let [first_step, longest_step] = learned.in_world_of(self.size).to_millis();
        [
            origin.code(),
            committed_by,
            step,
            chain_bytes as u64,
            first_generation,
            evaluated,
            first_step,
            longest_step,
            u64::from(evaluation_counts),
            hash,
            answered,
            newest,
            newest_step,
            written,
            u64::from(is_superseded),
            u64::from(is_live),
            unsaved.min(LONGEST_MILLIS),
            u64::from(is_owed),
            u64::from(is_cut_short),
            carried.map_or(0, |save| save.writer),
            carried.map_or(0, |save| save.hash),
            carried.map_or(0, |save| u64::from(save.num_parts)),
        ]
    }
}

/// A live state is the same wherever it is. Initial weights of other ranks are compared with those of the source, since
/// each rank computes its own. A checkpoint was read by one rank alone.
fn routes_of(
    source: StateSource,
    claims: &[Claim],
    since: &SinceCommits,
    procs_per_worker: u32,
) -> Routes {
    let is_as_evaluated = |rank: usize| since.evaluated[rank] == since.evaluated[source.rank];
    let keeps = |rank: usize| {
        let has_it = source.claim.origin == Origin::Live && claims[rank] == source.claim;
        rank == source.rank || has_it && since.is_same(rank, source.rank)
    };
    let ranks = || 0..claims.len();
    // All ranks take over the source's last evaluation, so a rank with another one does not send its state.
    let heads: Vec<usize> = ranks()
        .filter(|rank| keeps(*rank) && is_as_evaluated(*rank))
        .collect();
    let lacking: Vec<usize> = ranks().filter(|rank| !keeps(*rank)).collect();
    Routes::of(source.rank, &heads, &lacking, procs_per_worker as usize)
}

/// One number of each rank.
fn slots_of(sums: &[u64], place: usize) -> impl Iterator<Item = u64> {
    sums.iter().skip(place).step_by(OWN).copied()
}

/// No generation has the number 0.
fn carried_of(slots: &[u64]) -> Option<Carried> {
    (slots[19] > 0).then(|| Carried {
        writer: slots[19],
        hash: slots[20],
        num_parts: u32::try_from(slots[21]).unwrap_or(u32::MAX),
    })
}

const fn to_numbers(volume: &Volume) -> [u64; 4] {
    match volume {
        Volume::Absent => [0; 4],
        Volume::Silent => [1, 0, 0, 0],
        Volume::Names(Names {
            checkpoint: None,
            generation,
        }) => [2, 0, 0, *generation],
        Volume::Names(Names {
            checkpoint: Some(id),
            generation,
        }) => [3, id.generation, id.step, *generation],
    }
}

/// The inverse of [`to_numbers`].
fn from_numbers([code, newest, step, generation]: [u64; 4]) -> Volume {
    let id = CheckpointId {
        generation: newest,
        step,
    };
    match code {
        0 => Volume::Absent,
        1 => Volume::Silent,
        _ => Volume::Names(Names {
            checkpoint: (code == 3).then_some(id),
            generation,
        }),
    }
}
