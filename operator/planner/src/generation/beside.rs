//! Generations that may still train beside the next one. A process leaves its generation only if it
//! receives the membership of a newer one. So a generation whose members all live, and none of
//! which would be a member of the next one, may still train where the operator does not see it. The
//! next generation would then start a second process group beside it.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use roundhouse_contract::earlier::{Earlier, MAX_EARLIER};

use crate::draft::Draft;
use crate::generation::copies::{self, Holders};
use crate::lifecycle::suspend::still_leaves;
use crate::observed::{Observed, Pod};
use crate::status::time_left;
use crate::worker_state::{has_lost_its_processes, is_alive, is_member_of_any, may_hold_state};

/// How long a deleted pod on a node that does not answer counts as training. Kubernetes itself
/// gives up the pods of a lost node after this time.
pub(crate) const GIVEN_UP: Duration = Duration::from_secs(300);

/// The newest generation that is known to have formed; each older one has ended.
#[must_use]
pub fn newest_formed(observed: &Observed, newest: u64) -> u64 {
    let status = &observed.status;
    let stored = status.membership.as_ref().map(|it| it.formed);
    let shown = status.progress.as_ref();
    let shown = shown.map(|shown| shown.progress.generation);
    let polled = observed.progress.as_ref();
    let polled = polled.map(|polled| polled.progress.generation);
    let all = [stored, shown, polled, observed.formed]
        .into_iter()
        .flatten();
    // A generation above `newest` was lost in a restore of the API server and proves nothing about
    // the known ones.
    all.filter(|formed| *formed <= newest).max().unwrap_or(0)
}

/// Generations in which the container that runs in a pod was a member, the newest last.
pub(crate) fn generations_of(pod: &Pod) -> impl Iterator<Item = Earlier> {
    let newest = pod.membership.as_ref().filter(|_| is_member_of_any(pod));
    let earlier: &[Earlier] = newest.map_or(&[], |_| &pod.earlier);
    // An entry without nodes only says that the pod may keep a copy.
    let earlier = earlier.iter().filter(|it| it.nodes > 0);
    let newest = newest.map(|document| Earlier {
        generation: document.generation,
        nodes: document.nodes,
    });
    earlier.copied().chain(newest)
}

/// The value of the pod's annotation of earlier generations once it has its place in the next one.
pub(crate) fn kept(holders: Holders, pod: &Pod) -> Vec<Earlier> {
    let all = generations_of(pod);
    let mut kept: Vec<Earlier> = all.filter(|it| it.generation >= holders.formed).collect();
    let copy = copies::entry(holders, pod, &kept);
    let surplus = (kept.len() + usize::from(copy.is_some())).saturating_sub(MAX_EARLIER);
    kept.drain(..surplus);
    kept.splice(0..0, copy);
    kept
}

/// The newest formed generation that includes the container that runs in a pod: the
/// container holds its state.
pub(crate) fn formed_with(pod: &Pod, formed: u64) -> Option<u64> {
    let all = generations_of(pod).map(|it| it.generation);
    all.filter(|generation| *generation <= formed).max()
}

/// How long to wait for a generation that may still train and has no member in `next`;
/// `None` if there is no such generation. [`Duration::MAX`] means until the operator learns
/// more about its members.
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
                trains: false,
                left,
            });
            known.found += 1;
            known.continues |= is_next;
            known.trains |= !has_lost_its_processes(pod);
            known.left = known.left.min(left);
        }
    }
    let beside = all.into_values();
    let beside = beside.filter(|it| it.trains && !it.continues && it.found >= it.nodes);
    beside.map(|it| it.left).max()
}

/// How long terminating holders of the newest state may still save it, if no member of the next
/// generation holds a state. A checkpoint that completes after the next generation has started is
/// not used any more. `None` if no pod saves.
pub(crate) fn saving(draft: &Draft<'_>, next: &[&Pod]) -> Option<Duration> {
    if draft.job.checkpoint.is_none() || next.iter().any(|pod| may_hold_state(pod)) {
        return None;
    }
    let holders = draft.members.holders();
    let formed = holders.formed;
    // A restarted container saves the copy of its pod.
    let has_copy = |pod: &Pod| holders.copy_of(pod).is_some();
    let pods = draft.observed.pods.iter();
    let holders =
        pods.filter(|pod| is_alive(pod) && formed_with(pod, formed).is_some() || has_copy(pod));
    let left = holders.filter_map(|pod| still_leaves(pod, draft.now));
    left.max()
}

/// A generation as far as the pods of its members show it.
struct Known {
    nodes: u32,
    found: u32,
    /// Whether one of its members would also be a member of the next one.
    continues: bool,
    /// Whether one of them may still train or hold the state.
    trains: bool,
    /// Time until the first of its members is given up.
    left: Duration,
}

/// How long the container with this membership counts as training; `None` if it does not. A
/// terminating container has stopped, unless its node does not answer.
fn may_train(pod: &Pod, now: Timestamp) -> Option<Duration> {
    match (pod.deleting, pod.unreachable) {
        _ if !is_alive(pod) => None,
        (false, _) => Some(Duration::MAX),
        (true, false) => None,
        (true, true) => time_left(pod.ready_at.filter(|at| *at <= now)?, GIVEN_UP, now),
    }
}
