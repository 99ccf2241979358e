//! The agreement of a new generation's ranks before its first step.

use std::time::Duration;

use roundhouse_elastic::saving::{Carried, continued};
use roundhouse_elastic::state::plan::finder;
use roundhouse_elastic::state::replica::claims_of_replicas;
use roundhouse_elastic::state::{Lost, Plan, Routes, StateSource, Volume};
use roundhouse_elastic::{Claim, StepEstimate};

use super::since_commit::{SinceCommit, SinceCommits};
use super::{World, whole};
use crate::failure::Failure;
use crate::group::Group;

mod slots;

pub(crate) use slots::NUM_SLOTS;
use slots::{Reports, Slot};

/// One rank's report to a new generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankReport {
    /// The claim to its state, or to the checkpoint that it has found if that is newer.
    pub claim: Claim,
    /// Whether it has a state in memory.
    pub is_live: bool,
    /// Time without a complete checkpoint, and whether a save was abandoned.
    pub debt: (Duration, bool),
    /// Its save in flight.
    pub carried: Option<Carried>,
    /// Size of the position, scores and unwritten ledger lines that go with the state.
    pub chain_bytes: usize,
    /// Offset of the job's generations.
    pub first_generation: u64,
    /// Changes of its state since its last commit.
    pub since_commit: SinceCommit,
    /// Step times that it has measured.
    pub estimate: StepEstimate,
    /// Its knowledge of the volume. Only rank 0 lists it; the other ranks report whether they have
    /// a volume.
    pub volume: Volume,
    /// Whether it knows a newer generation or leaves.
    pub is_superseded: bool,
    /// Bytes of the state that it has or will have.
    pub state_bytes: u64,
}

/// The conclusion of a round of the agreement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Concluded {
    /// Send the state to the ranks that lack it, and train.
    Continue(Box<Agreed>),
    /// One rank searches the volume. See [`Plan::Search`].
    Search(Search),
    /// Wait for the volume. See [`Plan::Wait`].
    Wait,
    /// The state is lost. See [`Plan::Lost`].
    Lost(Lost),
    /// A newer generation has written. See [`Plan::Fenced`].
    Fenced {
        newer: u64,
        /// Offset of the job's generations.
        first_generation: u64,
    },
    /// A rank knows that this generation is superseded.
    Superseded,
}

/// The search of the volume for its newest checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Search {
    pub finder: usize,
    /// Whether training cannot continue without a checkpoint, because no rank has a state in
    /// memory.
    pub must_find: bool,
}

/// The agreement of a new generation's ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The rank with the state to continue from.
    pub source: StateSource,
    /// Which rank sends the state to which.
    pub routes: Routes,
    /// Size of the position, scores and ledger lines that come with the state on this rank's route.
    pub chain_bytes: usize,
    /// Offset of the job's generations: the highest of all ranks. A rank that could not read it on
    /// the volume reports a lower one.
    pub first_generation: u64,
    /// The most bytes that a rank sends or receives: those of the largest shard.
    pub most_bytes: u64,
    /// Number of committed samples at the last evaluation of the rank with the state.
    pub evaluated: u64,
    /// Step times: the longest of all ranks.
    pub estimate: StepEstimate,
    /// Time without a complete checkpoint, as the longest of all ranks, and whether a save of any
    /// rank was abandoned.
    pub debt: (Duration, bool),
    /// The save in flight that the generation continues.
    pub continued: Option<Carried>,
    /// The search that follows if the agreed checkpoint is damaged.
    pub otherwise: Search,
}

impl<G: Group> World<G> {
    /// Agrees on the start of `generation`: which rank has the state to continue from, what goes
    /// with it, and the offset of the job's generations. The result is the same on all ranks,
    /// except for the bytes on their routes. Each worker has `procs_per_worker` ranks.
    ///
    /// # Errors
    /// [`Failure::PeerLost`] when a rank is gone.
    pub fn agree_on_state(
        &self,
        own: &RankReport,
        generation: u64,
        procs_per_worker: u32,
    ) -> Result<Concluded, Failure> {
        let mut values = vec![0.0; NUM_SLOTS * self.size as usize];
        let numbers = own.to_numbers(self.size).map(|value| value as f64);
        values[NUM_SLOTS * self.rank as usize..][..NUM_SLOTS].copy_from_slice(&numbers);
        let reports = Reports::new(self.sum(&values)?.into_iter().map(whole).collect());
        if reports.highest(Slot::IsSuperseded) > 0 {
            return Ok(Concluded::Superseded);
        }
        let num_shards = self.num_shards as usize;
        let claims = claims_of_replicas(&reports.claims(), num_shards);
        let first_generation = reports.highest(Slot::FirstGeneration);
        let is_live = reports.flags(Slot::IsLive);
        let search = Search {
            finder: finder(&is_live, &reports.flags(Slot::Volume)),
            must_find: !is_live.contains(&true),
        };
        let volume = reports.volume();
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
            evaluated: reports.each(Slot::Evaluated).collect(),
            evaluation_counts: reports.highest(Slot::EvaluationCounts) > 0,
            is_cut_short: reports.flags(Slot::IsCutShort),
        };
        let since = since.of_replicas(num_shards);
        let source = since.furthest(source, &claims);
        let routes = routes_of(source, &claims, &since, procs_per_worker, num_shards);
        let carried = reports.carried();
        let continued = continued(&carried, &claims[0], &source.claim);
        let is_abandoned = continued.is_none() && carried.iter().any(Option::is_some);
        let head = routes.hop(self.rank as usize);
        let head = head.map_or(source.rank, |hop| hop.head);
        let step_millis =
            [Slot::FirstStepMillis, Slot::LongestStepMillis].map(|it| reports.highest(it));
        Ok(Concluded::Continue(Box::new(Agreed {
            source,
            routes,
            chain_bytes: usize::try_from(reports.get(head, Slot::ChainBytes)).unwrap_or_default(),
            first_generation,
            most_bytes: reports.highest(Slot::StateBytes),
            evaluated: since.evaluated[source.rank],
            estimate: StepEstimate::of_millis(step_millis, self.size),
            debt: (
                Duration::from_millis(reports.highest(Slot::UnsavedMillis)),
                reports.highest(Slot::IsOwed) > 0 || is_abandoned,
            ),
            continued,
            otherwise: search,
        })))
    }
}

/// A rank keeps its live state if it has the source's claim and [`SinceCommits::is_same`]. Initial
/// weights of other ranks are compared with those of the source, since each rank computes its own.
/// A checkpoint was read by one rank only.
fn routes_of(
    source: StateSource,
    claims: &[Claim],
    since: &SinceCommits,
    procs_per_worker: u32,
    num_shards: usize,
) -> Routes {
    let is_as_evaluated = |rank: usize| since.evaluated[rank] == since.evaluated[source.rank];
    let of_source = source.rank / num_shards;
    let keeps = |rank: usize| {
        let has_it = source.claim.origin.is_in_memory() && claims[rank] == source.claim;
        rank / num_shards == of_source || has_it && since.is_same(rank, source.rank)
    };
    if num_shards > 1 {
        // All ranks of a replica have or lack their shards. Each sends its shard to the rank of
        // the same shard.
        let replicas = || 0..claims.len() / num_shards;
        let first = |replica: &usize| replica * num_shards;
        let heads: Vec<usize> = replicas()
            .filter(|it| keeps(first(it)) && is_as_evaluated(first(it)))
            .collect();
        let lacking: Vec<usize> = replicas().filter(|it| !keeps(first(it))).collect();
        return Routes::of(of_source, &heads, &lacking, 1).of_shards(num_shards);
    }
    let ranks = || 0..claims.len();
    // All ranks take over the source's last evaluation, so a rank with another one does not send
    // its state.
    let heads: Vec<usize> = ranks()
        .filter(|rank| keeps(*rank) && is_as_evaluated(*rank))
        .collect();
    let lacking: Vec<usize> = ranks().filter(|rank| !keeps(*rank)).collect();
    Routes::of(source.rank, &heads, &lacking, procs_per_worker as usize)
}
