//! Completes replicas that lack pods: with pods of other incomplete replicas, and with free pods.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};

use super::assign::Places;
use crate::observed::Pod;

/// Completes a replica with pods of others, if each of them lacks a pod and none of them trains:
/// otherwise each would wait for a pod that may never come.
pub(super) fn merge(places: &mut Places<'_>, num_replicas: usize, is_fit: impl Fn(&Pod) -> bool) {
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
    let missing = pods.len() - num_fit(&pods);
    let available: usize = torn.iter().map(|(fit, _)| fit).sum();
    if available >= missing {
        let donors = torn
            .iter()
            .filter_map(|(_, Reverse(index))| places.remove_entry(index));
        let mut donors: Vec<(u32, Vec<Option<&Pod>>)> = donors.collect();
        let mut given = donors.iter_mut().flat_map(|(_, pods)| pods.iter_mut());
        for slot in &mut pods {
            if slot.is_some_and(&is_fit) {
                continue;
            }
            let donor = given.find(|donor| donor.is_some_and(&is_fit));
            if let Some(donor) = donor {
                // A pod that cannot train takes the place of the one that can.
                std::mem::swap(slot, donor);
            }
        }
        places.extend(donors);
    }
    places.insert(target, pods);
}

/// Fills holes with free pods, first in the replicas with the fewest holes.
pub(super) fn fill<'a>(
    places: &mut Places<'a>,
    wanted: u32,
    free: &mut Vec<&'a Pod>,
    is_fit: impl Fn(&Pod) -> bool,
) {
    if free.is_empty() {
        return;
    }
    let num_holes = |pods: &[Option<&Pod>]| pods.iter().filter(|pod| pod.is_none()).count();
    let mut replicas: Vec<(usize, u32)> = places
        .iter()
        .map(|(index, pods)| (num_holes(pods), *index))
        .collect();
    replicas.sort_unstable();
    // A surplus replica goes: it gets no more pods.
    replicas.truncate(wanted as usize);
    replicas.retain(|(holes, _)| *holes > 0);
    let mut by_index: BTreeMap<u32, &'a Pod> = free
        .drain(..)
        .filter_map(|pod| Some((pod.index?, pod)))
        .collect();
    // A pod goes to the place that its index suggests, if that is free: then the places of a new
    // job follow the indices.
    for (must_run, must_be_own) in [(true, true), (true, false), (false, true), (false, false)] {
        let may_come = |pod: &Pod| !must_run || is_fit(pod);
        let mut others: VecDeque<u32> = if must_be_own {
            VecDeque::new()
        } else {
            let fit = by_index.iter().filter(|(_, pod)| may_come(pod));
            fit.map(|(index, _)| *index).collect()
        };
        for (_, replica) in &replicas {
            let Some(pods) = places.get_mut(replica) else {
                continue;
            };
            let size = u32::try_from(pods.len()).unwrap_or(u32::MAX);
            let holes = (0..).zip(pods.iter_mut()).filter(|(_, pod)| pod.is_none());
            for (at, hole) in holes {
                let own = replica
                    .checked_mul(size)
                    .and_then(|first| first.checked_add(at));
                let from = if must_be_own {
                    own.filter(|own| by_index.get(own).is_some_and(|pod| may_come(pod)))
                } else {
                    others.pop_front()
                };
                if let Some(pod) = from.and_then(|from| by_index.remove(&from)) {
                    *hole = Some(pod);
                }
            }
        }
    }
    free.extend(by_index.into_values());
}
