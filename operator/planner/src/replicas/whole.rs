//! Makes whole replicas of running pods, as many as they can form.
//!
//! If each pod had the place that its index suggests, half of the pods could run without one whole
//! replica. But pods of a new job start within seconds of each other, and their places should
//! follow their indices. So a pod waits for the others of its replica for a while before it
//! completes another one.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use jiff::Timestamp;

use super::assign::Places;
use super::domains::DomainRule;
use super::fill::{num_holes, wanted};
use crate::observed::Pod;
use crate::status::time_left;

/// How long a pod that has started waits for the others of the replica that its index suggests.
const PATIENCE: Duration = Duration::from_secs(30);

/// What decides which pods may form a replica now.
pub(super) struct Rules<'r> {
    pub(super) domains: DomainRule,
    pub(super) is_fit: &'r dyn Fn(&Pod) -> bool,
    pub(super) now: Timestamp,
}

/// Pods that can train and have no place, by their own index.
pub(super) type Running<'a> = BTreeMap<u32, &'a Pod>;

impl Rules<'_> {
    pub(super) fn running<'a>(&self, free: &[&'a Pod]) -> Running<'a> {
        let fit = free.iter().filter(|pod| (self.is_fit)(pod));
        fit.filter_map(|pod| Some((pod.index?, *pod))).collect()
    }

    /// How long this running pod still waits for the others of its replica; `None` if it may
    /// complete another one.
    pub(super) fn left_to_wait(
        &self,
        places: &Places<'_>,
        running: &Running<'_>,
        pod: &Pod,
    ) -> Option<Duration> {
        let index = pod.index?;
        let size = u32::try_from(places.values().next()?.len()).ok()?;
        let home = index.checked_div(size)?;
        let pods = places.get(&home)?;
        let is_for_it = pod.replica_label.is_none_or(|it| it == home)
            && self.domains.is_near(pods, pod)
            && self.domains.may_join(home, pods, pod);
        let has_place = |at: u32| pods.get(at as usize).is_some_and(Option::is_none);
        let lacks = |at: u32| has_place(at) && !running.contains_key(&(index - index % size + at));
        if !is_for_it || !has_place(index % size) || !(0..size).any(lacks) {
            return None;
        }
        // The time is from the clock of the node, which may be ahead.
        let started = pod.container.started_at.filter(|at| *at <= self.now)?;
        time_left(started, PATIENCE, self.now)
    }
}

/// How a pass over the replicas completes them.
#[derive(Clone, Copy, Debug)]
struct Pass {
    must_be_near: bool,
    /// Whether only pods come whose indices suggest the replica.
    is_own_only: bool,
}

/// Completes replicas with pods of `free` that run. A replica that they cannot complete gets none.
pub(super) fn complete<'a>(
    places: &mut Places<'a>,
    num_wanted: u32,
    free: &mut Vec<&'a Pod>,
    rules: &Rules<'_>,
) {
    let mut running = rules.running(free);
    if running.is_empty() {
        return;
    }
    let is_preferred = rules.domains.is_preferred();
    for must_be_near in [true, false] {
        if must_be_near && !is_preferred {
            continue;
        }
        for is_own_only in [true, false] {
            let pass = Pass {
                must_be_near,
                is_own_only,
            };
            // Pods that waited for a replica may come once others have completed it.
            while complete_all(places, num_wanted, &mut running, rules, pass) {}
        }
    }
    free.retain(|pod| {
        let is_left = pod.index.is_some_and(|index| running.contains_key(&index));
        is_left || !(rules.is_fit)(pod)
    });
}

/// Completes what it can, and returns whether there was a replica.
fn complete_all<'a>(
    places: &mut Places<'a>,
    num_wanted: u32,
    running: &mut Running<'a>,
    rules: &Rules<'_>,
    pass: Pass,
) -> bool {
    let is_divided = pass.must_be_near || !rules.domains.is_preferred();
    let mut groups = BTreeMap::<Option<&str>, VecDeque<&'a Pod>>::new();
    if pass.is_own_only {
        groups.insert(None, VecDeque::new());
    } else {
        let come = running.values().copied();
        for pod in come.filter(|pod| rules.left_to_wait(places, running, pod).is_none()) {
            let domain = pod.domain.as_deref().filter(|_| is_divided);
            groups.entry(domain).or_default().push_back(pod);
        }
    }
    let mut is_any = false;
    for (holes, index) in wanted(places, num_wanted) {
        let Some(pods) = places.get_mut(&index).filter(|_| holes > 0) else {
            continue;
        };
        if !pods.iter().flatten().all(|pod| (rules.is_fit)(pod)) {
            continue;
        }
        let own = own(index, pods, running);
        let fits = |pods: &[Option<&Pod>], pod: &Pod| {
            let is_there = !pass.must_be_near || rules.domains.is_near(pods, pod);
            is_there && rules.domains.may_join(index, pods, pod)
        };
        let found = groups.iter().find_map(|(domain, group)| {
            let is_there = |pod: &Pod| pod.domain.is_none() || pod.domain.as_deref() == *domain;
            let is_one_of = |pod: &Pod| pass.is_own_only || !is_divided || is_there(pod);
            let own = own.iter().copied().filter(|(_, pod)| is_one_of(pod));
            let left = group.iter().copied();
            let left = left.filter(|pod| !is_taken(pod, running));
            whole(pods, own, left, fits)
        });
        if let Some(found) = found {
            *pods = found;
            for index in pods.iter().flatten().filter_map(|pod| pod.index) {
                running.remove(&index);
            }
            // Replicas take pods from the front, and a large job has many replicas.
            for group in groups.values_mut() {
                while group.front().is_some_and(|pod| is_taken(pod, running)) {
                    group.pop_front();
                }
            }
            is_any = true;
        }
    }
    is_any
}

fn is_taken(pod: &Pod, running: &Running<'_>) -> bool {
    pod.index.is_none_or(|index| !running.contains_key(&index))
}

/// The running pods whose indices suggest a hole of this replica, with their places.
fn own<'a>(index: u32, pods: &[Option<&'a Pod>], running: &Running<'a>) -> Vec<(usize, &'a Pod)> {
    let size = u32::try_from(pods.len()).unwrap_or(u32::MAX);
    let first = index.checked_mul(size);
    let holes = (0..size).zip(pods).filter(|(_, pod)| pod.is_none());
    let own = holes.filter_map(|(at, _)| {
        let pod = running.get(&first?.checked_add(at)?)?;
        Some((at as usize, *pod))
    });
    own.filter(|(_, pod)| pod.replica_label.is_none_or(|it| it == index))
        .collect()
}

/// The replica with all of its pods, if these are enough.
fn whole<'a>(
    pods: &[Option<&'a Pod>],
    own: impl Iterator<Item = (usize, &'a Pod)>,
    others: impl Iterator<Item = &'a Pod>,
    fits: impl Fn(&[Option<&Pod>], &Pod) -> bool,
) -> Option<Vec<Option<&'a Pod>>> {
    let mut whole = pods.to_vec();
    for (at, pod) in own {
        if fits(&whole, pod)
            && let Some(slot) = whole.get_mut(at)
        {
            *slot = Some(pod);
        }
    }
    for pod in others {
        if num_holes(&whole) == 0 {
            break;
        }
        let has_it = whole.iter().flatten().any(|it| std::ptr::eq(*it, pod));
        if !has_it
            && fits(&whole, pod)
            && let Some(slot) = whole.iter_mut().find(|slot| slot.is_none())
        {
            *slot = Some(pod);
        }
    }
    (num_holes(&whole) == 0).then_some(whole)
}
