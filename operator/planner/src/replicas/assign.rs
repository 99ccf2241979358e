//! Gives each pod its place in a replica.
//!
//! A pod that has a document of a place keeps it. All other pods are interchangeable, within a
//! topology domain if the job requires it. Those that run make as many whole replicas as they can.
//! The others fill holes, running ones first, and the rest are spares. If a pod cannot train (it
//! failed, or its node does not answer or is bad) and a spare can, the spare takes its place at
//! once. At least one pod stays: its agent ends the processes of the life before, so they cannot
//! train beside the new ones. A replica whose pods are all out of touch keeps its places, because
//! its processes may still train.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::Timestamp;

use super::domains::DomainRule;
use super::fill::fill;
use super::former::{former, leaving};
use super::merge::merge;
use super::reunite::reunite;
use super::whole::{Rules, complete};
use super::{Replica, Replicas};
use crate::generation::copies::Holders;
use crate::generation::members::by_index;
use crate::observed::{Observed, Pod, PodPhase};
use crate::plan::DeleteReason;
use crate::validate::ValidatedJob;
use crate::verdict::is_condemned;

/// The pods of replicas, by the index of the replica and their place in it.
pub(super) type Places<'a> = BTreeMap<u32, Vec<Option<&'a Pod>>>;

pub(super) fn assign<'a>(
    job: &ValidatedJob,
    observed: &'a Observed,
    now: Timestamp,
) -> Replicas<'a> {
    let size = job.pods_per_replica as usize;
    let (pods, mut surplus) = by_index(observed);
    let bad = pods.values().filter(|pod| is_condemned(job, pod, now));
    let condemned: BTreeSet<&str> = bad.map(|pod| pod.uid.as_str()).collect();
    let is_out = |pod: &Pod| pod.unreachable || condemned.contains(&*pod.uid);
    let is_fit = |pod: &Pod| pod.phase == PodPhase::Running && pod.ip.is_some() && !is_out(pod);
    let (mut places, mut free) = claims(&pods, size);
    let fit = free.iter().copied().filter(|pod| is_fit(pod)).collect();
    let rule = DomainRule::of(job);
    let mut displaced = vacate(&mut places, fit, rule, is_out);
    add_missing(&mut places, job.replicas, size);
    reunite(&mut places, Holders::of(job, observed), rule, is_fit);
    let rules = Rules {
        domains: rule,
        is_fit: &is_fit,
        now,
    };
    complete(&mut places, job.replicas, &mut free, &rules);
    displaced.extend(merge(&mut places, job.replicas as usize, &mut free, &rules));
    let running = rules.running(&free);
    let waits = running.values();
    let waits = waits.filter_map(|pod| rules.left_to_wait(&places, &running, pod));
    let patience_left = waits.min();
    let holes = fill(&mut places, job.replicas, &mut free, rule, is_fit);
    let mut spares: Vec<&Pod> = free.into_iter().chain(displaced).collect();
    // Those that can train stay.
    spares.sort_by_key(|pod| (!is_fit(pod), pod.index));
    let all = places
        .into_iter()
        .filter(|(_, pods)| pods.iter().any(Option::is_some));
    let all: BTreeMap<u32, Replica<'a>> = all
        .map(|(index, pods)| (index, Replica::new(index, pods)))
        .collect();
    let former = former(&all, &spares, size);
    let misplaced = misplaced(&mut spares, job, &holes, |index, pod| {
        let pods = all.get(&index).map_or(&[][..], |replica| &replica.pods);
        let is_replaced = is_out(pod) || pod.phase == PodPhase::Failed;
        // The life of before may still train.
        let is_in_use = former.iter().any(|it| it.has(pod));
        is_replaced || is_in_use || rule.may_join(index, pods, pod)
    });
    surplus.extend(
        misplaced
            .into_iter()
            .map(|pod| (pod, DeleteReason::FitsNoReplica)),
    );
    // No other spare goes while the job lacks pods: it may get a place.
    let is_short = pods.len() <= job.num_pods() as usize;
    let num_kept = if is_short {
        spares.len()
    } else {
        spares.len().min(job.spares as usize)
    };
    let excess = spares.split_off(num_kept).into_iter();
    surplus.extend(excess.map(|pod| (pod, DeleteReason::ScaledDown)));
    let is_by_document = |index: u32, pod: &Pod| {
        pod.replica
            .as_ref()
            .is_some_and(|place| place.replica == index)
    };
    let elsewhere = all
        .iter()
        .flat_map(|(index, replica): (&u32, &Replica<'a>)| {
            let others = replica.present().filter(|pod| !is_by_document(*index, pod));
            others.map(|pod| (pod.uid.as_str(), *index))
        });
    let index_of: HashMap<&str, u32> = elsewhere.collect();
    let (leaving, others) = leaving(observed, &pods, size);
    Replicas {
        all,
        leaving,
        former,
        num_fit_spares: spares.iter().filter(|pod| is_fit(pod)).count(),
        spares,
        surplus,
        holes,
        patience_left,
        pods,
        condemned,
        others,
        index_of,
    }
}

/// The places that pods have documents of, and the pods that have none of these places. Of two pods
/// with one place the later life counts.
fn claims<'a>(pods: &BTreeMap<u32, &'a Pod>, size: usize) -> (Places<'a>, Vec<&'a Pod>) {
    let (mut places, mut free) = (Places::new(), Vec::new());
    // Few jobs have two pods with one place.
    let num_of_life = LazyCell::new(|| {
        let mut num_of_life = HashMap::<&str, u32>::new();
        for place in pods.values().filter_map(|pod| pod.replica.as_ref()) {
            *num_of_life.entry(&place.life).or_default() += 1;
        }
        num_of_life
    });
    // Two operators may have given one place the same number.
    let claim = |pod: &Pod| {
        let place = pod.replica.as_ref()?;
        Some((place.number, num_of_life.get(&*place.life).copied()))
    };
    for pod in pods.values().copied() {
        let place = pod.replica.as_ref();
        let Some(place) = place.filter(|place| place.addresses.len() == size) else {
            free.push(pod);
            continue;
        };
        let replica = places.entry(place.replica);
        let replica = replica.or_insert_with(|| vec![None; size]);
        let slot = replica.get_mut(place.pod as usize);
        let slot = slot.filter(|slot| slot.is_none_or(|other| claim(pod) > claim(other)));
        free.extend(slot.map_or(Some(pod), |slot| slot.replace(pod)));
    }
    (places, free)
}

/// Takes places from pods that cannot train, as long as `fit` has pods to take them, and returns
/// the pods that lose theirs.
fn vacate<'a>(
    places: &mut Places<'a>,
    mut fit: Vec<&Pod>,
    rule: DomainRule,
    is_out: impl Fn(&Pod) -> bool,
) -> Vec<&'a Pod> {
    let mut displaced = Vec::new();
    for (index, replica) in places.iter_mut() {
        let stays = |pod: &&Pod| pod.phase == PodPhase::Running && !is_out(pod);
        let staying: Vec<Option<&Pod>> = replica.iter().map(|it| it.filter(stays)).collect();
        let mut present = staying.iter().flatten().peekable();
        if fit.is_empty() || present.peek().is_none() {
            continue;
        }
        // If those that answer are Ready, the others train, too: only the operator or the API
        // server does not reach them. A process that loses another one is not Ready.
        let trains = present.all(|pod| pod.ready);
        for slot in replica.iter_mut() {
            let goes = |pod: &mut &Pod| {
                pod.phase == PodPhase::Failed || is_out(pod) && !(trains && pod.unreachable)
            };
            let mut others = fit.iter();
            let other = others.position(|pod| rule.may_join(*index, &staying, pod));
            if let Some(other) = other
                && let Some(pod) = slot.take_if(goes)
            {
                displaced.push(pod);
                fit.swap_remove(other);
            }
        }
    }
    displaced
}

/// Removes the spares that fit no hole, first those that cannot train, while there are more spares
/// than the job wants. Each of them is created again for a replica that lacks a pod.
fn misplaced<'a>(
    spares: &mut Vec<&'a Pod>,
    job: &ValidatedJob,
    holes: &[u32],
    may_come: impl Fn(u32, &Pod) -> bool,
) -> Vec<&'a Pod> {
    let num_excess = spares.len().saturating_sub(job.spares as usize);
    let fits = |pod: &Pod| holes.iter().any(|index| may_come(*index, pod));
    let last_first = (0..spares.len()).rev();
    let going = last_first.filter(|at| spares.get(*at).is_some_and(|pod| !fits(pod)));
    let going: Vec<usize> = going.take(num_excess.min(holes.len())).collect();
    going.into_iter().map(|at| spares.remove(at)).collect()
}

/// Adds the missing replicas, with the lowest free indices.
fn add_missing(places: &mut Places<'_>, replicas: u32, size: usize) {
    let missing = (replicas as usize).saturating_sub(places.len());
    let free = (0..).filter(|index| !places.contains_key(index));
    let added: Vec<u32> = free.take(missing).collect();
    places.extend(added.into_iter().map(|index| (index, vec![None; size])));
}
