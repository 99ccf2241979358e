//! Which pod is which worker, and which workers belong to the newest generation.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use roundhouse_contract::{Action as MembershipAction, Incarnation, membership};

use self::victims::{dismiss, num_places, straggler, survivors, victims};
use crate::failures::policy::is_condemned;
use crate::generation::worker::{has_succeeded, is_alive, is_available, is_preparing, is_survivor};
use crate::generation::{beside, completed, newest_seen, topology};
use crate::observed::{Observed, Pod};
use crate::plan::DeleteReason;
use crate::validate::ValidatedJob;

mod victims;

/// The pods of a job, sorted out.
#[derive(Debug)]
pub struct Members<'a> {
    /// By index, at most as many as are wanted, with spares: the pod of the highest attempt that is not on its way out.
    /// After a scale-down the indices may have holes; a new worker takes the lowest.
    pub workers: BTreeMap<u32, &'a Pod>,
    /// Ours, but more than are wanted, or beside a later attempt.
    pub surplus: Vec<(&'a Pod, DeleteReason)>,
    /// Highest attempt seen of each index.
    pub attempts: BTreeMap<u32, u32>,
    /// Number of the newest generation; 0 before the first.
    pub generation: u64,
    /// Number of the newest generation that somebody has heard of. It is higher than `generation` when the API server was
    /// restored from an older state: agents that follow it ignore what is not newer.
    pub heard: u64,
    /// Number of the newest generation that is known to have formed; 0: of none.
    pub(crate) formed: u64,
    /// Fingerprint of those it was raised for.
    pub raised_for: String,
    /// Fingerprint of their order; empty if an older operator raised it, which stored none.
    raised_order: String,
    /// What was drawn for it.
    pub nonce: String,
    /// Workers that it was raised for.
    nodes: u32,
    /// Node ranks of its members that have completed, as the status stores them.
    pub(crate) completed: BTreeSet<u32>,
    /// Most members of the next generation.
    num_places: usize,
    /// UIDs of those that must not train any more.
    condemned: BTreeSet<&'a str>,
}

impl<'a> Members<'a> {
    /// Sorts out the pods.
    #[must_use]
    pub fn of(job: &ValidatedJob, observed: &'a Observed, now: Timestamp) -> Self {
        let mut workers = BTreeMap::<u32, &Pod>::new();
        let (mut surplus, mut attempts) = (Vec::new(), BTreeMap::<u32, u32>::new());
        for pod in observed.pods.iter().filter(|pod| pod.ours) {
            let Some(index) = pod.index else { continue };
            let highest = attempts.entry(index).or_insert(pod.attempt);
            *highest = (*highest).max(pod.attempt);
            if pod.deleting {
                continue;
            }
            match workers.get(&index) {
                Some(other) if other.attempt >= pod.attempt => {
                    surplus.push((pod, DeleteReason::Surplus));
                }
                Some(other) => {
                    surplus.push((*other, DeleteReason::Surplus));
                    workers.insert(index, pod);
                }
                None => {
                    workers.insert(index, pod);
                }
            }
        }
        let membership = observed.status.membership.as_ref();
        let generation = membership.map_or(0, |m| m.generation);
        let heard = newest_seen::newest(observed, generation);
        let formed = beside::newest_formed(observed, generation);
        // Of a state that was restored, and that others have left behind, completions say nothing.
        let completed = membership.filter(|m| m.generation == heard);
        let completed = completed.map(completed::stored).unwrap_or_default();
        // Once one has completed nobody is taken from the others: they would have to do it all again.
        let mut all = workers.values();
        let is_ending = workers.values().any(|pod| has_succeeded(pod))
            || (!completed.is_empty() && all.any(|pod| is_alive(pod) && is_of(pod, generation)));
        if !is_ending {
            let straggler = straggler(&workers, observed);
            let members = victims(
                &survivors(&workers, formed),
                job.replicas,
                straggler,
                formed,
            );
            dismiss(&mut workers, &mut surplus, &members);
            let others = victims(&workers, job.num_pods(), straggler, formed);
            dismiss(&mut workers, &mut surplus, &others);
        }
        let num_places = num_places(&workers, job, formed);
        let condemned = workers.values().filter(|pod| is_condemned(job, pod, now));
        let condemned = condemned.map(|pod| pod.uid.as_str()).collect();
        Self {
            heard,
            workers,
            surplus,
            attempts,
            generation,
            formed,
            raised_for: membership.map_or_else(String::new, |m| m.members.clone()),
            raised_order: membership.map_or_else(String::new, |m| m.order.clone()),
            nonce: membership.map_or_else(String::new, |m| m.nonce.clone()),
            nodes: membership.map_or(0, |m| m.nodes),
            completed,
            num_places,
            condemned,
        }
    }

    /// Whether the container that runs in the pod was given a place in the newest generation.
    #[must_use]
    pub fn is_member(&self, pod: &Pod) -> bool {
        is_of(pod, self.generation)
    }

    /// Whether the pod's document is of the generation that the status knows, and not of one of the same number before a restore.
    pub(crate) fn was_raised_with(&self, pod: &Pod) -> bool {
        let document = pod.membership.as_ref();
        document.is_some_and(|document| document.members == self.raised_for)
    }

    /// The members of the newest generation whose containers live.
    pub(crate) fn that_live(&self) -> Vec<&'a Pod> {
        let workers = self.workers.values().copied();
        workers
            .filter(|pod| self.is_member(pod) && is_alive(pod))
            .collect()
    }

    /// Whether the newest generation can still complete: all that it was raised for train, or have. Those that are known to
    /// have completed need no pod any more.
    #[must_use]
    pub fn are_whole(&self) -> bool {
        let all = self.workers.values().copied();
        let sound: Vec<&Pod> = all
            .filter(|pod| self.is_member(pod) && (is_alive(pod) || has_succeeded(pod)))
            .collect();
        if self.completed.is_empty() {
            return self.generation > 0 && fingerprint(&sound) == self.raised_for;
        }
        // Each place was given to one member alone, and only to those that the generation was raised for.
        let sound = sound.into_iter().filter(|pod| self.was_raised_with(pod));
        let places = sound.filter_map(|pod| Some(pod.membership.as_ref()?.node_rank));
        let places: BTreeSet<u32> = places.chain(self.completed.iter().copied()).collect();
        places.len() == self.nodes as usize
    }

    /// Node ranks of the members of the newest generation that have completed, by their pods or by the status.
    pub(crate) fn all_completed(&self) -> BTreeSet<u32> {
        let members = self.workers.values();
        let seen = members
            .filter(|pod| self.is_member(pod) && self.was_raised_with(pod) && has_succeeded(pod));
        let seen = seen.filter_map(|pod| Some(pod.membership.as_ref()?.node_rank));
        seen.chain(self.completed.iter().copied()).collect()
    }

    /// How many workers are Ready.
    #[must_use]
    pub fn num_ready(&self) -> usize {
        self.workers.values().filter(|pod| pod.ready).count()
    }

    /// Whether a pod must not train any more.
    #[must_use]
    pub fn is_condemned(&self, pod: &Pod) -> bool {
        self.condemned.contains(pod.uid.as_str())
    }

    /// The workers that would form the next generation, in the order of their node ranks in it.
    #[must_use]
    pub fn able(&self) -> Vec<&'a Pod> {
        let mut able = self.able_and_spares();
        able.truncate(self.num_places);
        if topology::is_known(&able)
            && let Some(first) = able.first().copied()
        {
            topology::arrange(&mut able, first);
        }
        able
    }

    /// How many workers wait in the lobby beyond those that would form the next generation.
    #[must_use]
    pub fn num_spares(&self) -> usize {
        let able = self.able_and_spares().len();
        able.saturating_sub(self.num_places)
    }

    /// How many pods there are for the wanted workers, without those beyond them, whether these are ready or not.
    #[must_use]
    pub fn num_without_spares(&self, spares: u32) -> usize {
        let beyond = self.workers.len().saturating_sub(self.num_places);
        self.workers.len() - beyond.min(spares as usize)
    }

    /// All workers that could be members, in the order of seniority. Those that do not fit in are spares.
    #[must_use]
    pub(crate) fn able_and_spares(&self) -> Vec<&'a Pod> {
        let workers = self.workers.values().copied();
        let mut able: Vec<&Pod> = workers
            .filter(|pod| is_available(pod) || is_survivor(pod))
            .filter(|pod| !pod.unreachable && !self.is_condemned(pod) && !is_preparing(pod))
            .collect();
        able.sort_by_key(|pod| seniority(pod));
        able
    }

    /// The workers of the newest generation in node-rank order, while it is being issued. A worker keeps a place that it
    /// was given; the others fill what is left in their order. `None`: that is not the order that the
    /// generation was raised in, because this is an old view of the pods, or because somebody edited an annotation.
    #[must_use]
    pub fn in_raised_order(&self, able: &[&'a Pod]) -> Option<Vec<&'a Pod>> {
        let placed = self.by_place(able);
        let is_raised = self.raised_order.is_empty() || order(&placed) == self.raised_order;
        is_raised.then_some(placed)
    }

    fn by_place(&self, able: &[&'a Pod]) -> Vec<&'a Pod> {
        let (members, mut others): (Vec<&'a Pod>, Vec<&'a Pod>) =
            able.iter().copied().partition(|pod| self.is_member(pod));
        // Until the first one has its place it is the most senior of those that have none: a new place may have made another
        // one more senior than it was.
        let leads = |pod: &&Pod| pod.membership.as_ref().is_some_and(|m| m.node_rank == 0);
        let most_senior = || others.iter().copied().min_by_key(|pod| seniority(pod));
        let first = members.iter().copied().find(leads).or_else(most_senior);
        if topology::is_known(able)
            && let Some(first) = first
        {
            topology::arrange(&mut others, first);
        }
        let mut places = vec![None; members.len() + others.len()];
        let mut late = Vec::new();
        for pod in members {
            let place = pod
                .membership
                .as_ref()
                .and_then(|m| usize::try_from(m.node_rank).ok());
            match place.and_then(|place| places.get_mut(place)) {
                Some(free @ None) => *free = Some(pod),
                Some(Some(_)) | None => late.push(pod),
            }
        }
        let mut rest = late.into_iter().chain(others);
        places
            .into_iter()
            .filter_map(|place| place.or_else(|| rest.next()))
            .collect()
    }
}

/// Whether the container that runs in the pod was given a place in this generation.
#[must_use]
pub fn is_of(pod: &Pod, generation: u64) -> bool {
    generation > 0
        && pod.membership.as_ref().is_some_and(|membership| {
            membership.generation == generation
                && membership.action == MembershipAction::Join
                && membership.incarnation == pod.incarnation()
        })
}

/// The order without topology: survivors first, in their old order, and of two with the same old place the one of the newer generation; then new
/// workers by index. So node rank 0 is a survivor, which has the state, if there is one. The key of a worker stays the
/// same until it is given its next place.
fn seniority(pod: &Pod) -> impl Ord + use<> {
    match pod.membership.as_ref().filter(|_| is_survivor(pod)) {
        Some(old) => (0, old.node_rank, Reverse(old.generation), pod.index),
        None => (1, 0, Reverse(0), pod.index),
    }
}

/// Fingerprint of a set of workers, in whatever order.
#[must_use]
pub fn fingerprint(workers: &[&Pod]) -> String {
    fingerprint_of(workers.iter().map(|pod| pod.incarnation()).collect())
}

/// Fingerprint of a set of incarnations, in whatever order.
pub(crate) fn fingerprint_of(mut members: Vec<Incarnation>) -> String {
    members.sort_by(|left, right| left.pod_uid.cmp(&right.pod_uid));
    membership::fingerprint(&members)
}

/// Fingerprint of workers in their order.
#[must_use]
pub fn order(workers: &[&Pod]) -> String {
    let members: Vec<Incarnation> = workers.iter().map(|pod| pod.incarnation()).collect();
    membership::fingerprint(&members)
}
