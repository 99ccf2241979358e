//! Fills holes of replicas with free pods, whether or not that completes them.

use std::collections::{BTreeMap, VecDeque};

use super::assign::Places;
use super::domains::DomainRule;
use crate::observed::Pod;

/// Fills holes with free pods, first in the replicas with the fewest holes. Returns the holes that
/// are left in wanted replicas, each as the index of its replica, sorted.
pub(super) fn fill<'a>(
    places: &mut Places<'a>,
    num_wanted: u32,
    free: &mut Vec<&'a Pod>,
    rule: DomainRule,
    is_fit: impl Fn(&Pod) -> bool,
) -> Vec<u32> {
    let mut replicas = wanted(places, num_wanted);
    replicas.retain(|(holes, _)| *holes > 0);
    let pods = free.drain(..);
    let mut by_index: BTreeMap<u32, &'a Pod> =
        pods.filter_map(|pod| Some((pod.index?, pod))).collect();
    for round in rounds(rule) {
        if by_index.is_empty() {
            break;
        }
        let come = by_index
            .iter()
            .filter(|(_, pod)| !round.must_run || is_fit(pod));
        let mut candidates = Candidates {
            in_order: come.clone().map(|(index, _)| *index).collect(),
            pods: come.map(|(index, pod)| (*index, *pod)).collect(),
        };
        for (_, index) in &replicas {
            let pods = places.get_mut(index);
            let taken = pods.map(|pods| fill_replica(*index, pods, &round, &mut candidates, rule));
            for pod in taken.into_iter().flatten() {
                by_index.remove(&pod);
            }
        }
    }
    free.extend(by_index.into_values());
    let left = replicas.iter().flat_map(|(_, index)| {
        let num = places.get(index).map_or(0, |pods| num_holes(pods));
        std::iter::repeat_n(*index, num)
    });
    let mut left: Vec<u32> = left.collect();
    left.sort_unstable();
    left
}

/// The wanted replicas with their numbers of holes, those with the fewest first.
pub(super) fn wanted(places: &Places<'_>, num_wanted: u32) -> Vec<(usize, u32)> {
    let mut replicas: Vec<(usize, u32)> = places
        .iter()
        .map(|(index, pods)| (num_holes(pods), *index))
        .collect();
    replicas.sort_unstable();
    // A surplus replica goes: it gets no more pods.
    replicas.truncate(num_wanted as usize);
    replicas
}

pub(super) fn num_holes(pods: &[Option<&Pod>]) -> usize {
    pods.iter().filter(|pod| pod.is_none()).count()
}

/// Fills the holes of one replica, and returns the own indices of the pods that it gets.
fn fill_replica<'a>(
    index: u32,
    pods: &mut [Option<&'a Pod>],
    round: &Round,
    candidates: &mut Candidates<'a>,
    rule: DomainRule,
) -> Vec<u32> {
    let size = pods.len();
    let mut taken = Vec::new();
    for source in round.sources {
        for at in 0..size {
            if pods.get(at).is_none_or(Option::is_some) {
                continue;
            }
            let fits = |pod: &Pod| {
                let is_there = !round.must_be_near || rule.is_near(pods, pod);
                is_there && rule.may_join(index, pods, pod)
            };
            let found = candidates.take(*source, (index, at, size), fits);
            if let Some((hole, (own, pod))) = pods.get_mut(at).zip(found) {
                *hole = Some(pod);
                taken.push(own);
            }
        }
    }
    taken
}

/// Which pod a hole gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The pod whose index suggests this place: then the places of a new job follow the indices.
    OwnIndex,
    /// A pod whose label names this replica.
    Label,
    Any,
}

/// One pass over the replicas with holes.
#[derive(Clone, Copy, Debug)]
struct Round {
    must_run: bool,
    must_be_near: bool,
    /// From where each replica gets its pods, in this order.
    sources: &'static [Source],
}

/// The passes in their order. A running pod comes before one that does not run yet, even if it is
/// in another domain.
fn rounds(rule: DomainRule) -> Vec<Round> {
    let mut rounds = Vec::new();
    for must_run in [true, false] {
        let mut add = |must_be_near, sources| {
            rounds.push(Round {
                must_run,
                must_be_near,
                sources,
            });
        };
        if rule.is_preferred() {
            // A replica is completed with pods of its domain, even if they were created for others.
            // A pod that waits for the others of its replica comes into none of theirs.
            add(true, &[Source::OwnIndex]);
            add(true, &[Source::Label, Source::Any]);
        }
        add(false, &[Source::OwnIndex]);
        if rule.is_set() {
            add(false, &[Source::Label]);
        }
        add(false, &[Source::Any]);
    }
    rounds
}

/// The free pods that may come in a round.
struct Candidates<'a> {
    pods: BTreeMap<u32, &'a Pod>,
    in_order: VecDeque<u32>,
}

impl<'a> Candidates<'a> {
    /// Takes the pod for a place in a replica of `size` pods, with its index.
    fn take(
        &mut self,
        source: Source,
        (replica, at, size): (u32, usize, usize),
        fits: impl Fn(&Pod) -> bool,
    ) -> Option<(u32, &'a Pod)> {
        let index = match source {
            Source::OwnIndex => {
                let first = u64::from(replica).checked_mul(size as u64)?;
                let own = u32::try_from(first.checked_add(at as u64)?).ok()?;
                let pod = self.pods.get(&own)?;
                let is_for_it = pod.replica_label.is_none_or(|it| it == replica);
                (is_for_it && fits(pod)).then_some(own)?
            }
            Source::Label | Source::Any => {
                let is_it = |pod: &Pod| {
                    let is_labelled = pod.replica_label == Some(replica);
                    (source == Source::Any || is_labelled) && fits(pod)
                };
                let mut all = self.in_order.iter();
                let found = all.position(|index| self.pods.get(index).is_some_and(|it| is_it(it)));
                self.in_order.remove(found?)?
            }
        };
        Some((index, self.pods.remove(&index)?))
    }
}
