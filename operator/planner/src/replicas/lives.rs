//! Starts the processes of a replica: writes a life into all of its pods.
//!
//! A life is over when a container of the replica restarts, a pod is lost, or an agent reports that
//! its processes have ended. Then the others cannot continue, and need another one. The identifier
//! of a life is random, and processes of two lives never connect. So no status has to store lives,
//! and two operators at once, or an operator with a stale view, can only start a life that never
//! begins to train.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use roundhouse_contract::ReplicaPlace;
use roundhouse_contract::membership::fingerprint_of;

use super::{Replica, Replicas, copy_holders};
use crate::draft::Draft;
use crate::generation::{copies, reissue};
use crate::lifecycle::suspend::still_leaves;
use crate::observed::{Pod, PodPhase};
use crate::plan::Action;
use crate::status::time;
use crate::worker_state::is_alive;

/// How long a place may take to arrive before it is written again. The time doubles before each
/// further time.
const FIRST_REISSUE: Duration = Duration::from_secs(5);

/// Writes a life into each replica that needs one and can start.
pub(crate) fn begin(draft: &mut Draft<'_>) {
    let Some(replicas) = draft.replicas else {
        return;
    };
    if let Some(left) = replicas.patience_left {
        draft.requeue(left);
    }
    let numbers = newest_numbers(replicas);
    for replica in replicas.all.values() {
        // A surplus replica is about to go.
        if !draft.members.workers.contains_key(&replica.index) {
            continue;
        }
        if let Some(pods) = next(replicas, replica, draft.now) {
            let holders = if copies::have_peers(draft.job) {
                copy_holders::next(&pods)
            } else {
                Vec::new()
            };
            let nonce = &draft.observed.nonce;
            // Pods of other replicas may come with later lives.
            let of_pods = pods.iter().filter_map(|pod| pod.replica.as_ref());
            let of_pods = of_pods.map(|place| place.number);
            let newest = of_pods.chain(numbers.get(&replica.index).copied()).max();
            let number = newest.unwrap_or(0) + 1;
            let actions = documents(replica, (&pods, &holders), number, nonce, draft.now);
            draft.actions.extend(actions);
        } else if replica.life.is_some() {
            reissue_late(draft, replica);
        }
    }
}

/// The pods of a replica, if it needs another life and can begin it.
fn next<'a>(
    replicas: &Replicas<'a>,
    replica: &Replica<'a>,
    now: Timestamp,
) -> Option<Vec<&'a Pod>> {
    let is_over = |life: &str| replica.present().any(|pod| pod.has_ended_life(life));
    if !replica.life.is_none_or(is_over) {
        return None;
    }
    let pods = replica.whole()?;
    let can_begin = pods.iter().all(|pod| can_start(pod));
    let trains_on = replicas
        .leaving
        .iter()
        .any(|it| may_leave(it, replica, now));
    (can_begin && !trains_on).then_some(pods)
}

/// Whether the agent in the pod runs and can receive a document.
fn can_start(pod: &Pod) -> bool {
    let end = pod.container.termination.as_ref();
    let has_ended = end.is_some_and(|end| end.restarts == pod.container.restarts);
    let runs = pod.phase == PodPhase::Running && pod.ip.is_some();
    runs && !pod.unreachable && !has_ended && pod.container.waiting.is_none()
}

/// Whether the replica as it was still trains until its terminating pods leave at a step boundary:
/// another life would end the processes of the pods that stay.
fn may_leave(leaving: &Replica<'_>, replica: &Replica<'_>, now: Timestamp) -> bool {
    let lives = |pod: &Pod| {
        let has_time = !pod.deleting || still_leaves(pod, now).is_some();
        is_alive(pod) && !pod.unreachable && has_time && !has_ended_its_life(pod)
    };
    let pods = leaving.whole();
    leaving.index == replica.index && pods.is_some_and(|pods| pods.into_iter().all(lives))
}

/// Whether the agent reports the end of the processes of the pod's present life.
fn has_ended_its_life(pod: &Pod) -> bool {
    let place = pod.replica.as_ref();
    place.is_some_and(|place| pod.has_ended_life(&place.life))
}

/// Writes the places of pods again that are not Ready: the kubelet sometimes misses a change of an
/// annotation. A process that still prepares ignores a place that it has.
fn reissue_late(draft: &mut Draft<'_>, replica: &Replica<'_>) {
    for pod in replica.present().filter(|pod| !pod.ready && can_start(pod)) {
        let Some(place) = &pod.replica else { continue };
        let Ok(issued_at) = place.issued_at.parse::<Timestamp>() else {
            continue;
        };
        if !reissue::helps(issued_at, draft.now) {
            continue;
        }
        match reissue::left(issued_at, FIRST_REISSUE, place.repeats, draft.now) {
            Some(left) => draft.requeue(left),
            None => draft.actions.push(Action::PlaceInReplica {
                pod: pod.name.clone(),
                resource_version: pod.resource_version.clone(),
                place: ReplicaPlace {
                    repeats: place.repeats + 1,
                    ..place.clone()
                },
            }),
        }
    }
}

/// The newest life of each replica, also of pods that have another place now: a document with a
/// lower number would not count beside theirs.
fn newest_numbers(replicas: &Replicas<'_>) -> BTreeMap<u32, u64> {
    let mut newest = BTreeMap::<u32, u64>::new();
    let present = replicas.all.values().flat_map(Replica::present);
    let all = replicas.pods.values().copied().chain(present);
    for place in all.filter_map(|pod| pod.replica.as_ref()) {
        let number = newest.entry(place.replica).or_default();
        *number = place.number.max(*number);
    }
    newest
}

fn documents(
    replica: &Replica<'_>,
    (pods, holders): (&[&Pod], &[Option<u32>]),
    number: u64,
    nonce: &str,
    now: Timestamp,
) -> Vec<Action> {
    let addresses = pods.iter().map(|pod| pod.ip.clone().unwrap_or_default());
    let addresses: Vec<String> = addresses.collect();
    // The plan's nonce may become that of a generation, which a life must not show.
    let random = fingerprint_of(format!("life {nonce}").as_bytes());
    let life = format!("{}-{number}-{random}", replica.index);
    let places = (0..).zip(pods);
    let documents = places.map(|(place, pod)| Action::PlaceInReplica {
        pod: pod.name.clone(),
        resource_version: pod.resource_version.clone(),
        place: ReplicaPlace {
            replica: replica.index,
            pod: place,
            addresses: addresses.clone(),
            holders: holders.to_vec(),
            number,
            life: life.clone(),
            incarnation: pod.incarnation(),
            issued_at: time(now).0.to_string(),
            repeats: 0,
        },
    });
    documents.collect()
}
