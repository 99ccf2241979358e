//! Puts the parts of the newest state together that pods of several replicas keep.
//!
//! If replicas lose different pods at the same moment, none of them has the whole state. With
//! copies in the pods (`checkpoint.local`), processes keep their parts when they end, and the pods
//! that are left may have all of them.

use super::Replica;
use super::assign::Places;
use super::domains::DomainRule;
use crate::generation::copies::Holders;
use crate::observed::Pod;

/// Gives one replica the pods with all parts of the newest state, unless a replica trains or has
/// them, or only some of the parts are left. Each pod stays at its place within a replica; the pods
/// that the replica had there go to the replicas that gave theirs.
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
    let has = |pods: &[Option<&Pod>], at: usize| {
        let pod = pods.get(at).copied().flatten();
        pod.is_some_and(|pod| keeps(at, pod))
    };
    let num_parts = |pods: &[Option<&Pod>]| (0..pods.len()).filter(|at| has(pods, *at)).count();
    let mut best = None;
    for (index, pods) in places.iter() {
        let num = num_parts(pods);
        if num == pods.len() || may_train(*index, pods) {
            return;
        }
        // The replica with the most parts needs the fewest others.
        if num > best.map_or(0, |(num, _)| num) {
            best = Some((num, *index));
        }
    }
    let Some((_, target)) = best else { return };
    let Some(own) = places.get(&target) else {
        return;
    };
    let mut whole = own.clone();
    let mut donors = Vec::new();
    for at in (0..own.len()).filter(|at| !has(own, *at)) {
        let found = places.iter().find_map(|(index, pods)| {
            let pod = pods.get(at).copied().flatten()?;
            (keeps(at, pod) && rule.may_join(target, &whole, pod)).then_some((*index, pod))
        });
        let Some((donor, pod)) = found else { return };
        if let Some(slot) = whole.get_mut(at) {
            *slot = Some(pod);
        }
        donors.push((at, donor));
    }
    for (at, donor) in donors {
        let former = places.get(&target).and_then(|pods| pods.get(at).copied());
        let slot = places.get_mut(&donor).and_then(|pods| pods.get_mut(at));
        if let Some((slot, former)) = slot.zip(former) {
            *slot = former;
        }
    }
    places.insert(target, whole);
}

/// Whether the processes of these pods may train together. The operator may not reach all of them;
/// a process that has lost another one is not Ready.
fn may_train(index: u32, pods: &[Option<&Pod>]) -> bool {
    let replica = Replica::new(index, pods.to_vec());
    let life = replica.life;
    life.is_some_and(|life| {
        let mut all = replica.present();
        all.all(|pod| !pod.has_ended_life(life) && (pod.ready || pod.unreachable))
    })
}
