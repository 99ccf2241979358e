//! Pods that may keep a copy of the newest known state (`checkpoint.local`) although the container
//! that wrote it has ended: its own pod, and the one that holds its second copies. Other workers
//! must not train from an older state as long as such a pod is about to return.

use std::cmp::Reverse;
use std::time::Duration;

use jiff::Timestamp;
use roundhouse_api::{Checkpoint, ConditionReason};
use roundhouse_contract::Action as Instruction;
use roundhouse_contract::earlier::Earlier;

use crate::draft::Draft;
use crate::generation::beside::{GIVEN_UP, formed_with, newest_formed};
use crate::generation::copy_pairs;
use crate::observed::{Observed, Pod, PodPhase};
use crate::plan::PlanReason;
use crate::replicas::{Replica, pods_in};
use crate::status::{counted, time_left};
use crate::validate::ValidatedJob;
use crate::worker_state::{is_available, may_hold_state};

/// How long survivors of a generation that is not known to have formed wait for a returning pod.
const BESIDE_SURVIVORS: Duration = Duration::from_secs(30);

/// Whether pods of the job keep copies.
#[must_use]
pub(crate) fn are_kept(job: &ValidatedJob) -> bool {
    let checkpoint = job.checkpoint.as_ref();
    checkpoint.is_some_and(|checkpoint| checkpoint.local.is_some())
}

/// Whether other pods hold copies of a pod's state: those of its replica, or a spare.
#[must_use]
pub(crate) fn have_peers(job: &ValidatedJob) -> bool {
    let checkpoint = job.checkpoint.as_ref();
    checkpoint.is_some_and(Checkpoint::has_peer_copies)
}

/// Which states pods hold or keep a copy of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holders {
    /// The newest generation that is known to have formed.
    pub(crate) formed: u64,
    /// Whether pods keep copies of the state.
    pub(crate) keep_copies: bool,
}

impl Holders {
    /// What counts in the observed state of a job.
    pub(crate) fn of(job: &ValidatedJob, observed: &Observed) -> Self {
        let membership = observed.status.membership.as_ref();
        Self {
            formed: newest_formed(observed, membership.map_or(0, |it| it.generation)),
            keep_copies: are_kept(job),
        }
    }

    /// The generation of whose state the pod may keep a copy.
    #[must_use]
    pub(crate) fn copy_of(self, pod: &Pod) -> Option<u64> {
        let is_kept = self.keep_copies;
        is_kept.then(|| generation_of(pod, self.formed))?
    }

    /// The generation of whose state the pod may keep a copy that its own processes wrote.
    #[must_use]
    pub(crate) fn own_copy_of(self, pod: &Pod) -> Option<u64> {
        as_member(pod, self.formed).filter(|_| self.keep_copies)
    }
}

/// The newest formed generation of whose state the pod may keep a copy: its container was a member,
/// or it holds copies of the state of a member.
#[must_use]
fn generation_of(pod: &Pod, formed: u64) -> Option<u64> {
    let held = copy_pairs::as_holder(pod).map(|document| document.generation);
    let held = held.filter(|generation| (1..=formed).contains(generation));
    as_member(pod, formed).max(held)
}

/// The newest formed generation in which a container of the pod was a member.
fn as_member(pod: &Pod, formed: u64) -> Option<u64> {
    let document = pod.membership.as_ref().filter(|document| {
        let is_same = pods_in(&document.incarnation.pod_uid) == pods_in(&pod.uid);
        document.action == Instruction::Join && is_same
    })?;
    let earlier = pod.earlier.iter().map(|it| it.generation);
    let all = earlier.chain([document.generation]);
    all.filter(|generation| *generation <= formed).max()
}

/// The newest formed generation of whose state these pods of a replica may keep a whole copy: all
/// pods of the replica were members, or all but one if each of them holds copies of another.
fn generation_of_replica<'a>(
    replica: &Replica<'_>,
    pods: impl Iterator<Item = &'a Pod>,
    formed: u64,
) -> Option<u64> {
    let mut generations: Vec<u64> = pods.filter_map(|pod| generation_of(pod, formed)).collect();
    generations.sort_unstable_by_key(|generation| Reverse(*generation));
    let mut places = replica.present().filter_map(|pod| pod.replica.as_ref());
    let have_peers =
        places.any(|place| !place.holders.is_empty() && place.holders.iter().all(Option::is_some));
    let needed = replica.pods.len() - usize::from(have_peers);
    generations.get(needed.checked_sub(1)?).copied()
}

/// An entry for the pod's annotation of earlier generations: the generation of whose state it may
/// keep a copy, unless `kept` names it already. It has no nodes, because none of its members trains
/// in it any more.
#[must_use]
pub(crate) fn entry(holders: Holders, pod: &Pod, kept: &[Earlier]) -> Option<Earlier> {
    let generation = holders.copy_of(pod)?;
    let is_known = kept.iter().any(|it| it.generation == generation);
    (!is_known).then_some(Earlier {
        generation,
        nodes: 0,
    })
}

/// Waits for a pod that keeps a copy of the newest known state, if there is one.
pub(crate) fn wait(draft: &mut Draft<'_>, next: &[&Pod]) -> Option<PlanReason> {
    let (left, pod) = returning(draft, next)?;
    draft.requeue(left);
    let waiting = counted(u32::try_from(next.len()).unwrap_or(u32::MAX), "worker");
    let verb = if next.len() == 1 { "waits" } else { "wait" };
    let message = format!(
        "{} restarts and keeps a copy of the newest state; {waiting} {verb} for it",
        pod.name
    );
    draft.running(false, ConditionReason::Recovering, message);
    Some(PlanReason::Recovering)
}

/// A pod that keeps a copy of the newest known state and is about to return, and how long to wait
/// for it. `None` if there is none, or if a member of the next generation holds that state or a
/// copy of it.
fn returning<'a>(draft: &Draft<'a>, next: &[&Pod]) -> Option<(Duration, &'a Pod)> {
    let formed = draft.members.formed;
    let stays = |pod: &Pod| pod.phase == PodPhase::Running && !pod.deleting && !pod.unreachable;
    let of_replica = |pod: &Pod| draft.replicas?.all.get(&pod.index?);
    // A replica may lack a pod, as long as the others keep a whole copy.
    let keeps_copy = |pod: &Pod| {
        let kept = match of_replica(pod) {
            Some(replica) => {
                let staying = replica.present().filter(|pod| stays(pod));
                generation_of_replica(replica, staying, formed)
            }
            None => generation_of(pod, formed).filter(|_| stays(pod)),
        };
        kept == Some(formed)
    };
    let has_state = |pod: &Pod| may_hold_state(pod) && formed_with(pod, formed) == Some(formed);
    let has_it = |pod: &&Pod| has_state(pod) || keeps_copy(pod);
    if !are_kept(draft.job) || formed == 0 || next.iter().any(has_it) {
        return None;
    }
    let workers = draft.members.workers.values().copied();
    let returning = workers
        .filter(|pod| !is_available(pod) && !draft.members.is_condemned(pod) && keeps_copy(pod));
    // The newest generation may not be known yet. Its survivors have a newer state.
    let most = if next.iter().any(|pod| may_hold_state(pod)) {
        BESIDE_SURVIVORS
    } else {
        GIVEN_UP
    };
    let left = returning.filter_map(|pod| {
        let left = time_left(unready_since(pod, draft.now)?, most, draft.now)?;
        Some((left, pod))
    });
    left.max_by_key(|(left, pod)| (*left, Reverse(&pod.name)))
}

/// Since when a pod is not Ready: the end of its container does not count if that has ended again.
/// The time is from the node's clock, which may be ahead by a little.
fn unready_since(pod: &Pod, now: Timestamp) -> Option<Timestamp> {
    let end = pod.container.termination.as_ref();
    let since = pod
        .ready_at
        .or_else(|| end.and_then(|end| end.finished_at))?;
    let ahead = since.duration_since(now);
    (ahead.is_negative() || ahead.unsigned_abs() <= GIVEN_UP).then(|| since.min(now))
}

#[cfg(test)]
mod tests {
    use roundhouse_contract::earlier::{self, MAX_EARLIER};

    use super::*;
    use crate::generation::beside;
    use crate::testing::world;

    #[test]
    fn copy_is_remembered_beside_many_generations_that_never_form() {
        let world = world(1).training();
        let holders = Holders {
            formed: 1,
            keep_copies: true,
        };
        let mut pod = world.observed.pods[0].clone();
        // The container that was in generation 1 has ended.
        pod.container.restarts += 1;
        for generation in 2..30 {
            pod.earlier = beside::kept(holders, &pod);
            let document = pod.membership.as_mut().unwrap();
            document.generation = generation;
            document.incarnation.restarts = pod.container.restarts;
            let text = earlier::to_text(&pod.earlier);
            assert_eq!(earlier::parse(&text), pod.earlier);
            assert_eq!(generation_of(&pod, 1), Some(1), "{text}");
        }
        assert_eq!(pod.earlier.len(), MAX_EARLIER);
    }

    #[test]
    fn clock_of_a_node_may_be_ahead() {
        let mut world = world(1).training();
        world.seconds_pass(1_000);
        for (seconds, expected) in [(-5, Some(-5)), (0, Some(0)), (5, Some(0)), (400, None)] {
            let at = |seconds: i64| world.now + jiff::SignedDuration::from_secs(seconds);
            let mut pod = world.observed.pods[0].clone();
            pod.ready_at = Some(at(seconds));
            assert_eq!(
                unready_since(&pod, world.now),
                expected.map(at),
                "{seconds}"
            );
        }
    }
}
