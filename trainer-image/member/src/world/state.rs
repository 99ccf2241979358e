//! What the ranks of a new generation tell each other before its first step.

use std::time::Duration;

use roundhouse_elastic::saving::{Carried, continued};
use roundhouse_elastic::state::plan::finder;
use roundhouse_elastic::state::{Lost, Plan, Routes, StateSource, Volume};
use roundhouse_elastic::{Claim, Origin, StepEstimate};

use super::since_commit::{SinceCommit, SinceCommits};
use super::{World, whole};
use crate::failure::Failure;
use crate::group::Group;

mod slots;

pub(crate) use slots::NUM_SLOTS;
use slots::{Reports, Slot};

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
    pub estimate: StepEstimate,
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
    pub estimate: StepEstimate,
    /// How long no checkpoint has been completed, by the rank that knows the longest time, and whether a save of any rank
    /// was abandoned.
    pub debt: (Duration, bool),
    /// The save in flight that the generation continues.
    pub continued: Option<Carried>,
    /// What to do if the state is a checkpoint that turns out to be damaged.
    pub otherwise: Search,
}

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
        let mut values = vec![0.0; NUM_SLOTS * self.size as usize];
        let numbers = own.to_numbers(self.size).map(|value| value as f64);
        values[NUM_SLOTS * self.rank as usize..][..NUM_SLOTS].copy_from_slice(&numbers);
        let reports = Reports::new(self.sum(&values)?.into_iter().map(whole).collect());
        if reports.highest(Slot::IsSuperseded) > 0 {
            return Ok(Concluded::Superseded);
        }
        let claims = reports.claims();
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
        let source = since.furthest(source, &claims);
        let routes = routes_of(source, &claims, &since, procs_per_worker);
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

/// A rank keeps its live state if it has the source's claim and [`SinceCommits::is_same`]. Initial weights of other ranks are
/// compared with those of the source, since each rank computes its own. A checkpoint was read by one rank alone.
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
