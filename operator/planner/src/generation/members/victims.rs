//! Chooses the workers to remove when fewer are wanted, and the number of places in the next
//! generation.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use roundhouse_contract::Action as MembershipAction;

use crate::generation::beside::formed_with;
use crate::generation::copies::Holders;
use crate::observed::{Observed, Pod};
use crate::plan::DeleteReason;
use crate::validate::ValidatedJob;
use crate::worker_state::{is_preparing, is_same_incarnation, may_hold_state};

/// The workers that hold a state. Only as many of them are kept as train, so that spares
/// stay when fewer train. A worker that was out of touch while a spare took its place is
/// surplus when it returns. A sharded worker that restarted has no state, and becomes a spare.
pub(super) fn survivors<'a>(
    workers: &BTreeMap<u32, &'a Pod>,
    formed: u64,
) -> BTreeMap<u32, &'a Pod> {
    let survivors = workers.iter().filter(|(_, pod)| may_hold_state(pod));
    let mut survivors: BTreeMap<u32, &Pod> = survivors.map(|(index, pod)| (*index, *pod)).collect();
    let has_state = |pod: &Pod| holds_newest(pod, formed);
    if !survivors
        .values()
        .any(|pod| has_state(pod) && !pod.unreachable)
    {
        // Only unreachable workers hold the newest known state. They are surplus if they return.
        survivors.retain(|_, pod| !has_state(pod));
    }
    survivors
}

/// Whether a pod holds the newest known state.
fn holds_newest(pod: &Pod, formed: u64) -> bool {
    formed > 0 && may_hold_state(pod) && formed_with(pod, formed) == Some(formed)
}

/// Number of places in the next generation. No holder of a state is left out. A process
/// that died in place restarts soon, and its siblings hold the state, so no spare takes the
/// place of their worker. A sharded worker is no survivor then, and a spare takes its place.
pub(super) fn num_places(workers: &BTreeMap<u32, &Pod>, job: &ValidatedJob, formed: u64) -> usize {
    let survivors = survivors(workers, formed);
    let is_back_soon = |pod: &&&Pod| is_preparing(pod) && !pod.unreachable;
    let back_soon = survivors.values().filter(is_back_soon).count();
    survivors.len().max(job.replicas as usize) - back_soon
}

/// Moves the chosen workers to the surplus.
pub(super) fn dismiss<'a>(
    workers: &mut BTreeMap<u32, &'a Pod>,
    surplus: &mut Vec<(&'a Pod, DeleteReason)>,
    victims: &[u32],
) {
    let pods = victims.iter().filter_map(|index| workers.remove(index));
    surplus.extend(pods.map(|pod| (pod, DeleteReason::ScaledDown)));
}

/// The workers to remove when fewer are wanted, in this order: workers on a cordoned or unreachable
/// node, workers that hold neither a state nor a copy of one, workers of an older generation, the
/// straggler, the highest index. Until a generation has formed none of its members has its state,
/// so they go before members of a formed generation, and the last of these stays.
pub(super) fn victims(
    workers: &BTreeMap<u32, &Pod>,
    wanted: u32,
    straggler: Option<u32>,
    holders: Holders,
) -> Vec<u32> {
    let formed = holders.formed;
    let excess = workers.len().saturating_sub(wanted as usize);
    if excess == 0 {
        return Vec::new();
    }
    let mut order: Vec<(u32, &Pod)> = workers.iter().map(|(i, p)| (*i, *p)).collect();
    order.sort_by_cached_key(|(index, pod)| {
        let stays = !pod.cordoned && !pod.unreachable;
        let keeps_up = straggler != Some(*index);
        let generation = pod.membership.as_ref().map(|place| place.generation);
        let trains = may_hold_state(pod).then_some((formed_with(pod, formed), generation));
        (
            stays,
            trains,
            holders.copy_of(pod),
            keeps_up,
            Reverse(*index),
        )
    });
    // Of the holders of the newest known state, one goes last.
    let last = order.iter().rposition(|(_, pod)| holds_newest(pod, formed));
    if let Some(last) = last {
        let last = order.remove(last);
        order.push(last);
    }
    let first = order.into_iter().take(excess);
    first.map(|(index, _)| index).collect()
}

/// The straggler of the newest generation. A report about an older generation names other places.
pub(super) fn straggler(
    workers: &BTreeMap<u32, &Pod>,
    observed: &Observed,
    pods_per_worker: u32,
) -> Option<u32> {
    let progress = &observed.progress.as_ref()?.progress;
    // A report of rank 0 counts pods.
    let place = progress.straggler?.node_rank / pods_per_worker;
    let newest = observed.status.membership.as_ref()?.generation;
    let holds_it = |pod: &Pod| {
        pod.membership.as_ref().is_some_and(|document| {
            document.generation == newest
                && document.action == MembershipAction::Join
                && document.node_rank == place
        })
    };
    let mut holders = workers
        .iter()
        .filter(|(_, pod)| is_same_incarnation(pod) && holds_it(pod));
    let (index, _) = holders.next().filter(|_| progress.generation == newest)?;
    Some(*index)
}
