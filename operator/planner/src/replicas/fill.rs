//! Completes replicas that lack pods: with pods of other incomplete replicas, and with free pods.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use super::assign::Places;
use super::domains::Domains;
use crate::observed::Pod;

/// Completes a replica with pods of others, if each of them lacks a pod and none of them trains:
/// otherwise each would wait for a pod that may never come.
pub(super) fn merge(
    places: &mut Places<'_>,
    num_replicas: usize,
    domains: Domains,
    is_fit: impl Fn(&Pod) -> bool,
) {
    let num_fit = |pods: &[Option<&Pod>]| pods.iter().flatten().filter(|pod| is_fit(pod)).count();
    let trains = |pods: &[Option<&Pod>]| pods.iter().flatten().any(|pod| pod.ready);
    let mut torn: Vec<(usize, Reverse<u32>)> = places
        .iter()
        .filter(|(_, pods)| !trains(pods) && num_fit(pods) < pods.len())
        .map(|(index, pods)| (num_fit(pods), Reverse(*index)))
        .collect();
    // While one replica trains, the others wait for their own pods.
    if torn.len() < places.len().min(num_replicas) || torn.len() < 2 {
        return;
    }
    torn.sort_unstable();
    let Some((_, Reverse(target))) = torn.pop() else {
        return;
    };
    let Some(mut pods) = places.remove(&target) else {
        return;
    };
    let staying: Vec<Option<&Pod>> = pods.iter().map(|it| it.filter(|pod| is_fit(pod))).collect();
    let may_come = |pod: &Pod| is_fit(pod) && domains.may_join(target, &staying, pod);
    let missing = pods.len() - num_fit(&pods);
    let others = torn
        .iter()
        .filter_map(|(_, Reverse(index))| places.get(index));
    let available = others.flatten().flatten().filter(|pod| may_come(pod));
    if available.count() >= missing {
        let donors = torn
            .iter()
            .filter_map(|(_, Reverse(index))| places.remove_entry(index));
        let mut donors: Vec<(u32, Vec<Option<&Pod>>)> = donors.collect();
        let mut given = donors.iter_mut().flat_map(|(_, pods)| pods.iter_mut());
        for slot in &mut pods {
            if slot.is_some_and(&is_fit) {
                continue;
            }
            let donor = given.find(|donor| donor.is_some_and(may_come));
            if let Some(donor) = donor {
                // A pod that cannot train takes the place of the one that can.
                std::mem::swap(slot, donor);
            }
        }
        places.extend(donors);
    }
    places.insert(target, pods);
}

/// Fills holes with free pods, first in the replicas with the fewest holes. Returns the index of
/// the replica for each hole that is left, in order.
pub(super) fn fill<'a>(
    places: &mut Places<'a>,
    wanted: u32,
    free: &mut Vec<&'a Pod>,
    domains: Domains,
    is_fit: impl Fn(&Pod) -> bool,
) -> Vec<u32> {
    let num_holes = |pods: &[Option<&Pod>]| pods.iter().filter(|pod| pod.is_none()).count();
    let mut replicas: Vec<(usize, u32)> = places
        .iter()
        .map(|(index, pods)| (num_holes(pods), *index))
        .collect();
    replicas.sort_unstable();
    // A surplus replica goes: it gets no more pods.
    replicas.truncate(wanted as usize);
    replicas.retain(|(holes, _)| *holes > 0);
    let pods = free.drain(..);
    let mut by_index: BTreeMap<u32, &'a Pod> =
        pods.filter_map(|pod| Some((pod.index?, pod))).collect();
    for round in rounds(domains) {
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
        for (_, replica) in &replicas {
            let Some(pods) = places.get_mut(replica) else {
                continue;
            };
            for source in round.sources {
                for at in 0..pods.len() {
                    if pods.get(at).is_none_or(Option::is_some) {
                        continue;
                    }
                    let fits = |pod: &Pod| {
                        let is_there = !round.must_be_near || domains.is_near(pods, pod);
                        is_there && domains.may_join(*replica, pods, pod)
                    };
                    let found = candidates.take(*source, (*replica, at, pods.len()), fits);
                    if let Some((hole, (index, pod))) = pods.get_mut(at).zip(found) {
                        *hole = Some(pod);
                        by_index.remove(&index);
                    }
                }
            }
        }
    }
    free.extend(by_index.into_values());
    let left = replicas.iter().flat_map(|(_, index)| {
        let holes = places.get(index).map_or(0, |pods| num_holes(pods));
        std::iter::repeat_n(*index, holes)
    });
    let mut left: Vec<u32> = left.collect();
    left.sort_unstable();
    left
}

/// Which pod a hole gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The pod whose index suggests this place: then the places of a new job follow the indices.
    OwnIndex,
    /// A pod that was created for this replica.
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

/// The passes in their order. A pod that runs comes before one that does not yet, although it is in
/// another domain.
fn rounds(domains: Domains) -> Vec<Round> {
    const NEAR: &[Source] = &[Source::OwnIndex, Source::Label, Source::Any];
    let mut rounds = Vec::new();
    for must_run in [true, false] {
        let mut add = |must_be_near, sources| {
            rounds.push(Round {
                must_run,
                must_be_near,
                sources,
            });
        };
        if domains.are_preferred() {
            // A replica is completed with pods of its domain, even if they were created for others.
            add(true, NEAR);
        }
        add(false, &[Source::OwnIndex]);
        if domains.matter() {
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
