//! Completes replicas that lack pods with those of other incomplete replicas.

use std::cmp::Reverse;

use super::assign::Places;
use super::whole::Rules;
use crate::observed::Pod;

/// Completes replicas with pods of others and with free ones, if each lacks a pod and none of them
/// trains: otherwise each would wait for a pod that may never come. Returns the pods that lose
/// their places.
pub(super) fn merge<'a>(
    places: &mut Places<'a>,
    num_replicas: usize,
    free: &mut Vec<&'a Pod>,
    rules: &Rules<'_>,
) -> Vec<&'a Pod> {
    let num_fit = |pods: &[Option<&Pod>]| {
        let present = pods.iter().flatten();
        present.filter(|pod| (rules.is_fit)(pod)).count()
    };
    let trains = |pods: &[Option<&Pod>]| pods.iter().flatten().any(|pod| pod.ready);
    let mut torn: Vec<(Reverse<usize>, u32)> = places
        .iter()
        .filter(|(_, pods)| !trains(pods) && num_fit(pods) < pods.len())
        .map(|(index, pods)| (Reverse(num_fit(pods)), *index))
        .collect();
    // While one replica trains, the others wait for their own pods.
    if torn.len() < places.len().min(num_replicas) || torn.len() < 2 {
        return Vec::new();
    }
    // The replica with the most pods needs the fewest others.
    torn.sort_unstable();
    // One without such a pod is empty, or its processes may still train out of touch.
    let targets = torn.iter().filter(|(num_fit, _)| num_fit.0 > 0);
    let targets: Vec<u32> = targets.map(|(_, index)| *index).collect();
    let mut torn: Vec<u32> = torn.into_iter().map(|(_, index)| index).collect();
    let mut displaced = Vec::new();
    for target in targets {
        if let Some(unfit) = complete(places, target, &torn, free, rules) {
            torn.retain(|index| *index != target);
            displaced.extend(unfit);
        }
    }
    displaced
}

/// Completes this replica with free pods, and then with those of the other torn ones, those with
/// the fewest pods first. Returns the pods that free ones replace, or `None` if all of them are not
/// enough.
fn complete<'a>(
    places: &mut Places<'a>,
    target: u32,
    torn: &[u32],
    free: &mut Vec<&'a Pod>,
    rules: &Rules<'_>,
) -> Option<Vec<&'a Pod>> {
    let fit = |pod: &&'a Pod| (rules.is_fit)(pod);
    let pods = places.get(&target)?;
    let mut whole: Vec<Option<&Pod>> = pods.iter().map(|it| it.filter(fit)).collect();
    let others = torn.iter().rev().filter(|index| **index != target);
    let others = others.flat_map(|index| {
        let pods = places.get(index).into_iter().flatten().enumerate();
        pods.filter_map(move |(at, pod)| Some((Some((*index, at)), (*pod)?)))
    });
    let others = others.filter(|(_, pod)| fit(pod));
    let running = rules.running(free);
    let waits = |pod: &Pod| rules.left_to_wait(places, &running, pod).is_some();
    let come = running.values().copied().filter(|pod| !waits(pod));
    let mut donors: Vec<(Option<(u32, usize)>, &'a Pod)> =
        come.map(|pod| (None, pod)).chain(others).collect();
    let mut moves = Vec::new();
    for hole in 0..whole.len() {
        if whole.get(hole).is_none_or(Option::is_some) {
            continue;
        }
        let found = donors
            .iter()
            .position(|(_, pod)| rules.domains.may_join(target, &whole, pod));
        let (donor, pod) = donors.remove(found?);
        if let Some(slot) = whole.get_mut(hole) {
            *slot = Some(pod);
        }
        moves.push((hole, donor, pod));
    }
    let mut displaced = Vec::new();
    for (hole, donor, pod) in moves {
        let slot = places.get_mut(&target).and_then(|pods| pods.get_mut(hole));
        let unfit = slot.and_then(|slot| slot.replace(pod));
        let Some((donor, at)) = donor else {
            free.retain(|it| !std::ptr::eq(*it, pod));
            displaced.extend(unfit);
            continue;
        };
        // A pod that cannot train takes the place of the one that can.
        if let Some(slot) = places.get_mut(&donor).and_then(|pods| pods.get_mut(at)) {
            *slot = unfit;
        }
    }
    Some(displaced)
}
