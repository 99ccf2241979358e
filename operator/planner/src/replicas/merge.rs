//! Completes replicas that lack pods with those of other incomplete replicas.

use std::cmp::Reverse;

use super::assign::Places;
use super::domains::DomainRule;
use crate::observed::Pod;

/// Completes a replica with pods of others, if each of them lacks a pod and none of them trains:
/// otherwise each would wait for a pod that may never come.
pub(super) fn merge(
    places: &mut Places<'_>,
    num_replicas: usize,
    rule: DomainRule,
    is_fit: impl Fn(&Pod) -> bool,
) {
    let num_fit = |pods: &[Option<&Pod>]| pods.iter().flatten().filter(|pod| is_fit(pod)).count();
    let trains = |pods: &[Option<&Pod>]| pods.iter().flatten().any(|pod| pod.ready);
    let mut torn: Vec<(Reverse<usize>, u32)> = places
        .iter()
        .filter(|(_, pods)| !trains(pods) && num_fit(pods) < pods.len())
        .map(|(index, pods)| (Reverse(num_fit(pods)), *index))
        .collect();
    // While one replica trains, the others wait for their own pods.
    if torn.len() < places.len().min(num_replicas) || torn.len() < 2 {
        return;
    }
    // The replica with the most pods needs the fewest others.
    torn.sort_unstable();
    let torn: Vec<u32> = torn.into_iter().map(|(_, index)| index).collect();
    let _ = torn
        .iter()
        .any(|target| complete(places, *target, &torn, rule, &is_fit));
}

/// Completes this replica with pods of the other torn ones, those with the fewest pods first.
/// Returns whether they have enough.
fn complete(
    places: &mut Places<'_>,
    target: u32,
    torn: &[u32],
    rule: DomainRule,
    is_fit: impl Fn(&Pod) -> bool,
) -> bool {
    let Some(pods) = places.get(&target) else {
        return false;
    };
    let mut whole: Vec<Option<&Pod>> = pods.iter().map(|it| it.filter(|pod| is_fit(pod))).collect();
    let others = torn.iter().rev().filter(|index| **index != target);
    let others = others.flat_map(|index| {
        let pods = places.get(index).into_iter().flatten().enumerate();
        pods.filter_map(move |(at, pod)| Some((*index, at, (*pod)?)))
    });
    let mut donors: Vec<(u32, usize, &Pod)> = others.filter(|(.., pod)| is_fit(pod)).collect();
    let mut moves = Vec::new();
    for hole in 0..whole.len() {
        if whole.get(hole).is_none_or(Option::is_some) {
            continue;
        }
        let found = donors
            .iter()
            .position(|(.., pod)| rule.may_join(target, &whole, pod));
        let Some(found) = found else {
            return false;
        };
        let (donor, at, pod) = donors.remove(found);
        if let Some(slot) = whole.get_mut(hole) {
            *slot = Some(pod);
        }
        moves.push((hole, donor, at));
    }
    for (hole, donor, at) in moves {
        let given = places.get_mut(&donor).and_then(|pods| pods.get_mut(at));
        let given = given.and_then(Option::take);
        let slot = places.get_mut(&target).and_then(|pods| pods.get_mut(hole));
        let unfit = slot.and_then(|slot| std::mem::replace(slot, given));
        // A pod that cannot train takes the place of the one that can.
        if let Some(slot) = places.get_mut(&donor).and_then(|pods| pods.get_mut(at)) {
            *slot = unfit;
        }
    }
    true
}
