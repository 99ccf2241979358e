//! Completes a replica with the pods that keep the parts of the newest state.
//!
//! If replicas lose different pods at the same moment, none of them has the whole state. With
//! copies in the pods (`checkpoint.local`), processes save their parts when they end, and the pods
//! that are left may have all of them.

use super::Replica;
use super::assign::Places;
use super::domains::DomainRule;
use crate::generation::copies::Holders;
use crate::observed::Pod;

/// The pods of a replica, and where some of them come from: a place, and the index of a replica.
type Completed<'a> = (Vec<Option<&'a Pod>>, Vec<(usize, u32)>);

/// Gives one replica the pods that keep all parts of the newest state. Does nothing if a replica
/// may train, if one already has all parts, or if a part is missing. Each pod keeps its place
/// within a replica, and the pods that it replaces go to the replicas that gave theirs.
pub(super) fn reunite(
    places: &mut Places<'_>,
    holders: Holders,
    rule: DomainRule,
    is_fit: impl Fn(&Pod) -> bool,
) {
    let keeps = |at: usize, pod: &Pod| {
        let document = pod.replica.as_ref();
        let is_its_part = document.is_some_and(|document| document.pod as usize == at);
        is_its_part && is_fit(pod) && holders.own_copy_of(pod) == Some(holders.formed)
    };
    let Some(target) = torn_with_most_parts(places, keeps) else {
        return;
    };
    let Some(own) = places.get(&target).cloned() else {
        return;
    };
    let Some((whole, donors)) = completed(places, target, &own, rule, keeps) else {
        return;
    };
    for (at, donor) in donors {
        let slot = places.get_mut(&donor).and_then(|pods| pods.get_mut(at));
        if let Some((slot, replaced)) = slot.zip(own.get(at)) {
            *slot = *replaced;
        }
    }
    places.insert(target, whole);
}

/// The replica with the most parts, which needs the fewest others; `None` if a replica may train or
/// has all parts, or if none has any.
fn torn_with_most_parts(places: &Places<'_>, keeps: impl Fn(usize, &Pod) -> bool) -> Option<u32> {
    let mut best = (0, None);
    for (index, pods) in places {
        let parts = pods.iter().enumerate();
        let num = parts
            .filter(|(at, pod)| pod.is_some_and(|pod| keeps(*at, pod)))
            .count();
        if num == pods.len() || may_train(*index, pods) {
            return None;
        }
        if num > best.0 {
            best = (num, Some(*index));
        }
    }
    best.1
}

/// The replica with the pods that keep the parts it lacks, at their places. `None` if a part is
/// missing.
fn completed<'a>(
    places: &Places<'a>,
    target: u32,
    own: &[Option<&'a Pod>],
    rule: DomainRule,
    keeps: impl Fn(usize, &Pod) -> bool,
) -> Option<Completed<'a>> {
    let (mut whole, mut donors) = (own.to_vec(), Vec::new());
    for at in 0..own.len() {
        let has_part = own.get(at)?.is_some_and(|pod| keeps(at, pod));
        if has_part {
            continue;
        }
        let (donor, pod) = places.iter().find_map(|(index, pods)| {
            let pod = pods.get(at).copied().flatten()?;
            (keeps(at, pod) && rule.may_join(target, &whole, pod)).then_some((*index, pod))
        })?;
        *whole.get_mut(at)? = Some(pod);
        donors.push((at, donor));
    }
    Some((whole, donors))
}

/// Whether the processes of these pods may train together in a generation. An unreachable pod may
/// train, and a process that has lost another one is not Ready. A pod of a torn replica can still
/// be Ready, because its process has not noticed the loss.
fn may_train(index: u32, pods: &[Option<&Pod>]) -> bool {
    let replica = Replica::new(index, pods.to_vec());
    let life = replica.life;
    life.is_some_and(|life| {
        let may = |pod: &Pod| {
            let document = pod.membership.as_ref();
            let is_member = document.is_some_and(|document| document.life == life);
            is_member && !pod.has_ended_life(life) && (pod.ready || pod.unreachable)
        };
        replica.present().all(may)
    })
}
