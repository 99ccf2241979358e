//! Generations that may still train beside the next one. A process leaves its generation for a newer one only if the newer one
//! reaches it. So a generation all of whose members live, and none of which would be a member of the next one, may train on
//! where the operator does not see it: the next one would begin a second process group beside it.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use roundhouse_contract::earlier::{Earlier, MAX_EARLIER};

use crate::draft::Draft;
use crate::generation::worker::{is_alive, is_member_of_any, is_survivor};
use crate::lifecycle::suspend::still_leaves;
use crate::observed::{Observed, Pod};
use crate::status::time_left;

/// How long a pod on a node that does not answer is taken for one that trains after it was deleted. Kubernetes itself gives up the
/// pods of a lost node after as long.
pub(crate) const GIVEN_UP: Duration = Duration::from_secs(300);

/// The newest generation that is known to have formed: each older one has ended.
pub(crate) fn newest_formed(observed: &Observed, newest: u64) -> u64 {
    let status = &observed.status;
    let stored = status.membership.as_ref().map(|it| it.formed);
    let shown = status.progress.as_ref();
    let shown = shown.map(|shown| shown.progress.generation);
    let heard = observed.progress.as_ref();
    let heard = heard.map(|heard| heard.progress.generation);
    let all = [stored, shown, heard, observed.formed]
        .into_iter()
        .flatten();
    // What follows a generation that was forgotten by a restore says nothing of the known ones.
    all.filter(|formed| *formed <= newest).max().unwrap_or(0)
}

/// Generations of which the container that runs in a pod was a member, the newest last.
pub(crate) fn generations_of(pod: &Pod) -> impl Iterator<Item = Earlier> {
    let newest = pod.membership.as_ref().filter(|_| is_member_of_any(pod));
    let earlier: &[Earlier] = newest.map_or(&[], |_| &pod.earlier);
    let newest = newest.map(|document| Earlier {
        generation: document.generation,
        nodes: document.nodes,
    });
    earlier.iter().copied().chain(newest)
}

/// What the pod's annotation says once it has its place in the next generation.
pub(crate) fn kept(pod: &Pod, formed: u64) -> Vec<Earlier> {
    let all = generations_of(pod);
    let mut kept: Vec<Earlier> = all.filter(|it| it.generation >= formed).collect();
    let surplus = kept.len().saturating_sub(MAX_EARLIER);
    kept.drain(..surplus);
    kept
}

/// The newest generation that is known to have formed with the container that runs in a pod: it holds its state.
pub(crate) fn formed_with(pod: &Pod, formed: u64) -> Option<u64> {
    let all = generations_of(pod).map(|it| it.generation);
    all.filter(|generation| *generation <= formed).max()
}

/// How long a generation that may still train with none of these, which would form the next one, is waited for; `None`: there is
/// none. [`Duration::MAX`]: until more is known of its members.
pub(crate) fn left(draft: &Draft<'_>, next: &[&Pod]) -> Option<Duration> {
    let formed = draft.members.formed;
    let mut all = BTreeMap::<u64, Known>::new();
    for pod in draft.observed.pods.iter().filter(|pod| pod.ours) {
        let Some(left) = may_train(pod, draft.now) else {
            continue;
        };
        let is_next = next.iter().any(|it| it.uid == pod.uid);
        for it in generations_of(pod).filter(|it| it.generation >= formed) {
            let known = all.entry(it.generation).or_insert(Known {
                nodes: it.nodes,
                found: 0,
                continues: false,
                left,
            });
            known.found += 1;
            known.continues |= is_next;
            known.left = known.left.min(left);
        }
    }
    let beside = all.into_values();
    let beside = beside.filter(|it| !it.continues && it.found >= it.nodes);
    beside.map(|it| it.left).max()
}

/// How long those that hold the newest state and are on their way out may still save it, if no member of the next generation
/// holds a state: a checkpoint that is complete after the next generation has begun is not used any more. `None`: nobody saves.
pub(crate) fn saving(draft: &Draft<'_>, next: &[&Pod]) -> Option<Duration> {
    if draft.job.checkpoint.is_none() || next.iter().any(|pod| is_survivor(pod)) {
        return None;
    }
    let pods = draft.observed.pods.iter().filter(|pod| is_alive(pod));
    let holders = pods.filter(|pod| formed_with(pod, draft.members.formed).is_some());
    let left = holders.filter_map(|pod| still_leaves(pod, draft.now));
    left.max()
}

/// A generation as its members' pods tell of it.
struct Known {
    nodes: u32,
    found: u32,
    /// Whether one of its members would be a member of the next one, too.
    continues: bool,
    /// Until the first of its members is given up.
    left: Duration,
}

/// How long the container that was given a place is taken for one that trains; `None`: it does not. One that is on its way out
/// knows that, unless its node does not answer.
fn may_train(pod: &Pod, now: Timestamp) -> Option<Duration> {
    match (pod.deleting, pod.unreachable) {
        _ if !is_alive(pod) => None,
        (false, _) => Some(Duration::MAX),
        (true, false) => None,
        (true, true) => time_left(pod.ready_at.filter(|at| *at <= now)?, GIVEN_UP, now),
    }
}
