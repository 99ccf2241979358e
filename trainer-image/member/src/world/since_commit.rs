//! Changes of the state after a commit, by which states of one step can differ.

use roundhouse_elastic::{Claim, StateSource};

/// Changes of a rank's state since it committed its last step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SinceCommit {
    /// Number of committed samples at the rank's last evaluation.
    pub evaluated: u64,
    /// Whether an evaluation changes the state.
    pub evaluation_counts: bool,
    /// Whether the rest of the step was cut short. See [`crate::LocalState::is_cut_short`].
    pub is_cut_short: bool,
}

/// The [`SinceCommit`] of each rank. A collective can succeed on one rank and fail on another, so
/// ranks that have committed the same step can have different states.
pub(super) struct SinceCommits {
    /// Number of committed samples at the rank's last evaluation.
    pub(super) evaluated: Vec<u64>,
    /// Whether evaluations change the state.
    pub(super) evaluation_counts: bool,
    /// Whether the rest of that step was cut short, at a point that the other ranks do not know.
    pub(super) is_cut_short: Vec<bool>,
}

impl SinceCommits {
    /// What the ranks of each replica of `num_shards` ranks have in common. If they were evaluated
    /// differently, their step counts as cut short.
    pub(super) fn of_replicas(self, num_shards: usize) -> Self {
        let each = |rank: usize| {
            let first = rank / num_shards * num_shards;
            first..(first + num_shards).min(self.evaluated.len())
        };
        let least = |rank: usize| each(rank).map(|it| self.evaluated[it]).min();
        let is_cut = |rank: usize| {
            let differs = self.evaluation_counts && Some(self.evaluated[rank]) != least(rank);
            self.is_cut_short[rank] || differs
        };
        let ranks = || 0..self.evaluated.len();
        Self {
            evaluated: ranks().filter_map(least).collect(),
            is_cut_short: ranks().map(|rank| each(rank).any(is_cut)).collect(),
            evaluation_counts: self.evaluation_counts,
        }
    }

    /// Whether two ranks with the same claim have the same state.
    pub(super) fn is_same(&self, one: usize, other: usize) -> bool {
        let are_whole = !self.is_cut_short[one] && !self.is_cut_short[other];
        let is_evaluated_alike = self.evaluated[one] == self.evaluated[other];
        one == other || are_whole && (!self.evaluation_counts || is_evaluated_alike)
    }

    /// Chooses the rank with the most complete state among those with the best claim.
    pub(super) fn furthest(&self, source: StateSource, claims: &[Claim]) -> StateSource {
        let holders = || (0..claims.len()).filter(|rank| claims[*rank] == source.claim);
        if holders().all(|rank| self.is_same(rank, source.rank)) {
            return source;
        }
        let done = |rank: usize| {
            let evaluated = if self.evaluation_counts {
                self.evaluated[rank]
            } else {
                0
            };
            (evaluated, !self.is_cut_short[rank])
        };
        let most = holders().map(done).max();
        let furthest = holders().find(|rank| Some(done(*rank)) == most);
        StateSource {
            rank: furthest.unwrap_or(source.rank),
            must_send: true,
            ..source
        }
    }
}
