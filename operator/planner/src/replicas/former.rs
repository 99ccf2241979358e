//! Replicas as they were: those that leave, and lives that may still train although the places of
//! their pods have changed.

use std::collections::BTreeMap;

use super::Replica;
use crate::observed::{Observed, Pod};
use crate::worker_state::is_survivor;

/// The replicas of terminating pods, with the pods that share their life, and terminating pods
/// that had no place.
pub(super) fn leaving<'a>(
    observed: &'a Observed,
    pods: &BTreeMap<u32, &'a Pod>,
    size: usize,
) -> (Vec<Replica<'a>>, Vec<&'a Pod>) {
    let mut replicas = BTreeMap::<(u32, &str), Vec<Option<&'a Pod>>>::new();
    let mut others = Vec::new();
    let all = observed.pods.iter();
    for pod in all.filter(|pod| pod.ours && (pod.deleting || pod.index.is_none())) {
        let place = pod.replica.as_ref().filter(|_| pod.deleting);
        let place = place.filter(|place| place.addresses.len() == size);
        let Some(place) = place else {
            others.push(pod);
            continue;
        };
        let replica = replicas.entry((place.replica, &place.life));
        let replica = replica.or_insert_with(|| vec![None; size]);
        if let Some(slot) = replica.get_mut(place.pod as usize) {
            *slot = Some(pod);
        }
    }
    if replicas.is_empty() {
        return (Vec::new(), others);
    }
    for pod in pods.values() {
        let Some(place) = &pod.replica else { continue };
        let replica = replicas.get_mut(&(place.replica, &*place.life));
        let slot = replica.and_then(|replica| replica.get_mut(place.pod as usize));
        if let Some(slot @ None) = slot {
            *slot = Some(pod);
        }
    }
    let replicas = replicas.into_iter();
    let replicas = replicas.map(|((index, _), pods)| Replica::new(index, pods));
    (replicas.collect(), others)
}

/// Lives that may still train in a generation although they are no life of a replica. A spare that
/// takes the place of a lost pod begins another life with the rest, but the rest may receive it
/// late, or be cut off before.
///
/// `beside`: the pods without a place.
pub(super) fn former<'a>(
    all: &BTreeMap<u32, Replica<'a>>,
    beside: &[&'a Pod],
    size: usize,
) -> Vec<Replica<'a>> {
    let mut left: Vec<&Pod> = all.values().flat_map(not_begun).collect();
    left.extend(beside);
    left.sort_unstable_by_key(|pod| pod.index);
    let mut lives = BTreeMap::<&str, Vec<Option<&'a Pod>>>::new();
    for pod in left {
        let Some(document) = pod.membership.as_ref().filter(|it| !it.life.is_empty()) else {
            continue;
        };
        if pod.has_ended_life(&document.life) || !is_survivor(pod) {
            continue;
        }
        let life = lives.entry(&document.life);
        let life = life.or_insert_with(|| vec![None; size]);
        if let Some(slot) = life.get_mut(document.node_rank as usize % size) {
            *slot = Some(pod);
        }
    }
    let whole = lives
        .into_values()
        .filter(|pods| pods.iter().all(Option::is_some));
    whole.map(|pods| Replica::new(0, pods)).collect()
}

/// The pods that may not have begun their replica's life or a later one. All pods are Ready in a
/// later one only when all agents have ended the processes of the life before: at least one pod
/// was not Ready when it began.
fn not_begun<'r, 'a>(replica: &'r Replica<'a>) -> impl Iterator<Item = &'a Pod> + use<'r, 'a> {
    let present = replica.life;
    let are_ready = replica.present().all(|it| it.ready && !it.unreachable);
    let has_begun = move |pod: &Pod| {
        let life = pod.membership.as_ref().map(|document| &*document.life);
        present.is_some() && (are_ready || life == present)
    };
    replica.present().filter(move |pod| !has_begun(pod))
}
