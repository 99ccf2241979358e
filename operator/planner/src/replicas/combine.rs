//! A replica as one pod: what the policies for workers see of its pods. It is ready if all of its
//! pods are, and gone, unreachable or broken if one of them is. Its incarnation is that of its pods
//! and of their common life, so another life is to the policies what a restarted container is.

use std::cmp::Reverse;

use roundhouse_contract::earlier::Earlier;
use roundhouse_contract::{Action, Incarnation, Membership};

use super::Replica;
use crate::observed::{Container, Pod, PodPhase, Processes, Termination};
use crate::verdict::is_peer_failure;
use crate::worker_state::{end_of_member, has_succeeded, is_alive, is_same_incarnation};

/// What separates the UIDs of pods from the life of their replica.
const LIFE: char = '@';

/// `life`: that of the processes of its pods; `None` if they have several.
/// `version`: what stands for its pods in the precondition of a write.
pub(super) fn combine(replica: &Replica<'_>, life: Option<&str>, version: String) -> Pod {
    let pods: Vec<&Pod> = replica.present().collect();
    let is_whole = pods.len() == replica.pods.len();
    // The pod that the message of a condition should name.
    let Some(shown) = pods.iter().min_by_key(|pod| notability(pod)) else {
        return Pod::default();
    };
    let first = replica.pods.first().copied().flatten();
    let any = |is: fn(&Pod) -> bool| pods.iter().any(|pod| is(pod));
    let all = |is: fn(&Pod) -> bool| is_whole && pods.iter().all(|pod| is(pod));
    let unreachable = pods.iter().filter(|pod| pod.unreachable);
    let completed = completed(&pods);
    let phase = phase(&pods, is_whole);
    let ready = life.is_some() && all(|pod| pod.ready);
    Pod {
        name: shown.name.clone(),
        uid: uid(pods.iter().map(|pod| &*pod.uid), life.unwrap_or_default()),
        resource_version: version,
        ours: true,
        index: Some(replica.index),
        attempt: pods.iter().map(|pod| pod.attempt).max().unwrap_or(0),
        deleting: any(|pod| pod.deleting),
        gone_by: pods.iter().filter_map(|pod| pod.gone_by).max(),
        created_at: pods.iter().filter_map(|pod| pod.created_at).max(),
        scheduled_at: all(|pod| pod.scheduled_at.is_some())
            .then(|| pods.iter().filter_map(|pod| pod.scheduled_at).max())
            .flatten(),
        phase,
        ready,
        ready_at: ready_at(&pods, ready),
        disrupted: any(|pod| pod.disrupted),
        conditions: shown.conditions.clone(),
        unreachable: any(|pod| pod.unreachable),
        node_answers: unreachable.clone().any(|pod| pod.node_answers),
        agent_silent: unreachable.clone().any(|pod| pod.agent_silent),
        cordoned: any(|pod| pod.cordoned),
        // The first pod hosts the store of a generation.
        ip: first.and_then(|pod| pod.ip.clone()),
        // While a pod is missing, the others do not explain why the replica does not start.
        node: shown
            .node
            .clone()
            .filter(|_| is_whole || shown.unreachable || shown.phase == PodPhase::Pending),
        domain: first.and_then(|pod| pod.domain.clone()),
        gates: shown.gates.clone(),
        ends_group: any(|pod| pod.ends_group),
        left_domain: any(|pod| pod.left_domain),
        replica_label: None,
        gang: 0,
        unschedulable: pods.iter().find_map(|pod| pod.unschedulable.clone()),
        failed: shown.failed.clone(),
        sidecar_runs: any(|pod| pod.sidecar_runs),
        container: Container {
            restarts: sum(pods.iter().map(|pod| pod.container.restarts)),
            waiting: pods.iter().find_map(|pod| pod.container.waiting.clone()),
            started_at: None,
            termination: completed
                .and_then(end_of_member)
                .map(|end| Termination {
                    restarts: sum(pods.iter().map(|pod| pod.container.restarts)),
                    ..end.clone()
                })
                .or_else(|| termination(&pods, is_whole)),
        },
        initializing: pods.iter().find_map(|pod| pod.initializing.clone()),
        membership: completed
            .and_then(|pod| pod.membership.as_ref())
            .map(|document| of_completed(&pods, document, life))
            .or_else(|| membership(&pods, is_whole)),
        earlier: earlier(&pods),
        newer_protocol: pods.iter().filter_map(|pod| pod.newer_protocol).max(),
        built_from: shown.built_from.clone(),
        processes: processes(&pods, life),
        replica: None,
        copies: None,
    }
}

/// A key that is smaller for a pod that explains more of the state of its replica.
fn notability(pod: &Pod) -> (bool, bool, bool, bool, bool, Option<u32>) {
    (
        !pod.unreachable,
        pod.phase != PodPhase::Failed,
        pod.membership.is_none() || is_alive(pod),
        pod.gates.is_empty() && pod.phase != PodPhase::Pending,
        pod.ready,
        pod.replica.as_ref().map(|place| place.pod),
    )
}

pub(super) fn uid<'p>(uids: impl Iterator<Item = &'p str>, life: &str) -> String {
    let uids: Vec<&str> = uids.collect();
    format!("{}{LIFE}{life}", uids.join("+"))
}

/// The UIDs of pods in that of their replica, without its life. No UID has this character.
pub(crate) fn pods_in(uid: &str) -> &str {
    uid.split_once(LIFE).map_or(uid, |(pods, _)| pods)
}

pub(super) fn sum(numbers: impl Iterator<Item = u32>) -> u32 {
    numbers.fold(0, u32::saturating_add)
}

fn phase(pods: &[&Pod], is_whole: bool) -> PodPhase {
    let any = |phase| pods.iter().any(|pod| pod.phase == phase);
    if any(PodPhase::Failed) {
        PodPhase::Failed
    } else if !is_whole || any(PodPhase::Pending) {
        PodPhase::Pending
    } else if any(PodPhase::Running) {
        PodPhase::Running
    } else {
        PodPhase::Succeeded
    }
}

/// Since when it is ready, or is not.
fn ready_at(pods: &[&Pod], ready: bool) -> Option<jiff::Timestamp> {
    if ready {
        return pods.iter().filter_map(|pod| pod.ready_at).max();
    }
    let unready = pods.iter().filter(|pod| !pod.ready);
    unready.filter_map(|pod| pod.ready_at).min()
}

/// The newest generation of which all pods have a place for their present containers. While the
/// operator writes a new one, that is the one before.
fn membership(pods: &[&Pod], is_whole: bool) -> Option<Membership> {
    let documents: Vec<&Membership> = pods
        .iter()
        .filter_map(|pod| pod.membership.as_ref())
        .collect();
    let (first, size) = (documents.first()?, num_pods(pods));
    if !is_whole || documents.len() < pods.len() {
        return None;
    }
    let had = |pod: &Pod, generation: u64| {
        let had = |it: &Earlier| it.generation == generation && it.nodes > 0;
        pod.membership
            .as_ref()
            .is_some_and(|it| it.generation == generation)
            || is_same_incarnation(pod) && pod.earlier.iter().any(had)
    };
    let own = pods.first().map_or(&[][..], |pod| &pod.earlier);
    let known = own.iter().map(|it| it.generation).chain([first.generation]);
    let common = known.filter(|generation| pods.iter().all(|pod| had(pod, *generation)));
    let generation = common.max()?;
    let of_it = || documents.iter().filter(|it| it.generation == generation);
    // If each pod has a later document, the places in this one are not known any more.
    let shown = of_it().next().unwrap_or(first);
    let life = if documents.iter().any(|it| it.life != first.life) {
        // No life has this name.
        "several"
    } else {
        &first.life
    };
    let uids = documents.iter().map(|it| &*it.incarnation.pod_uid);
    let leaves = of_it().any(|it| it.action == Action::Leave);
    let incarnation = Incarnation {
        pod_uid: uid(uids, life),
        restarts: sum(documents.iter().map(|it| it.incarnation.restarts)),
    };
    Some(Membership {
        generation,
        action: if leaves { Action::Leave } else { Action::Join },
        issued_at: documents.iter().map(|it| &it.issued_at).max()?.clone(),
        repeats: documents.iter().map(|it| it.repeats).min()?,
        ..of_replica(shown, size, incarnation)
    })
}

fn num_pods(pods: &[&Pod]) -> u32 {
    u32::try_from(pods.len()).unwrap_or(u32::MAX).max(1)
}

/// Earlier generations in which all pods were members.
fn earlier(pods: &[&Pod]) -> Vec<Earlier> {
    let size = num_pods(pods);
    let Some((first, others)) = pods.split_first() else {
        return Vec::new();
    };
    let are_of_all = |it: &&Earlier| {
        let has = |pod: &&Pod| {
            pod.earlier
                .iter()
                .any(|other| other.generation == it.generation)
        };
        others.iter().all(has)
    };
    let common = first.earlier.iter().filter(are_of_all);
    common
        .map(|it| Earlier {
            nodes: it.nodes / size,
            ..*it
        })
        .collect()
}

/// A pod that has completed its last generation, if no process of the others is left in it: the
/// replica has completed. A process completes when all ranks have committed the last step and the
/// result is on the volume, so the end of the others loses nothing.
fn completed<'p>(pods: &[&'p Pod]) -> Option<&'p Pod> {
    let completed = pods.iter().find(|pod| has_succeeded(pod))?;
    let document = completed.membership.as_ref()?;
    let trains = |pod: &&&Pod| {
        let own = pod.membership.as_ref();
        let is_in_it = own.is_some_and(|own| own.generation >= document.generation);
        is_in_it && is_alive(pod) && !pod.has_ended_life(&document.life)
    };
    pods.iter().find(trains).is_none().then_some(completed)
}

/// The membership of a replica that has completed, whatever became of its other containers.
fn of_completed(pods: &[&Pod], document: &Membership, life: Option<&str>) -> Membership {
    let incarnation = Incarnation {
        pod_uid: uid(pods.iter().map(|pod| &*pod.uid), life.unwrap_or_default()),
        restarts: sum(pods.iter().map(|pod| pod.container.restarts)),
    };
    of_replica(document, num_pods(pods), incarnation)
}

/// The document of a pod as that of its replica, which has `size` pods.
fn of_replica(document: &Membership, size: u32, incarnation: Incarnation) -> Membership {
    Membership {
        node_rank: document.node_rank / size,
        nodes: document.nodes / size,
        procs_per_worker: document.procs_per_worker.saturating_mul(size),
        incarnation,
        ..document.clone()
    }
}

/// How the containers for which the pods' memberships were written ended: one of them failed, or
/// all have completed.
fn termination(pods: &[&Pod], is_whole: bool) -> Option<Termination> {
    let ends: Vec<&Termination> = pods.iter().filter_map(|pod| end_of_member(pod)).collect();
    let failed = ends.iter().filter(|end| end.exit_code != 0);
    let cause = failed.min_by_key(|end| (is_peer_failure(end), end.finished_at));
    let have_completed = is_whole && ends.len() == pods.len();
    let last = ends.iter().max_by_key(|end| end.finished_at);
    let end = cause.or(last.filter(|_| have_completed))?;
    let of_members = pods.iter().filter_map(|pod| pod.membership.as_ref());
    Some(Termination {
        restarts: sum(of_members.map(|it| it.incarnation.restarts)),
        ..(**end).clone()
    })
}

fn processes(pods: &[&Pod], life: Option<&str>) -> Option<Processes> {
    let reports: Vec<&Processes> = pods
        .iter()
        .filter_map(|pod| pod.processes.as_ref())
        .collect();
    if reports.is_empty() {
        return None;
    }
    let is_over = life.is_some_and(|life| pods.iter().any(|pod| pod.has_ended_life(life)));
    let ends = reports.iter().filter_map(|it| it.end.as_ref());
    let generation = |end: &Termination| end.message.as_ref().map(|words| words.generation);
    let end = ends.min_by_key(|end| {
        (
            Reverse(generation(end)),
            is_peer_failure(end),
            end.finished_at,
        )
    });
    Some(Processes {
        are_preparing: is_over || reports.iter().any(|it| it.are_preparing),
        are_without_state: is_over || reports.iter().any(|it| it.are_without_state),
        are_ready: pods
            .iter()
            .all(|pod| pod.ready || pod.processes.as_ref().is_some_and(|it| it.are_ready)),
        end: end.cloned(),
        ended_life: String::new(),
    })
}
