//! Maps pods to workers, and workers to the newest generation.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use roundhouse_contract::{Action as MembershipAction, membership};

use self::victims::{dismiss, num_places, straggler, survivors, victims};
use crate::generation::copies::Holders;
use crate::generation::{completed, copy_pairs, newest_seen, topology};
use crate::observed::{Observed, Pod};
use crate::plan::DeleteReason;
use crate::validate::ValidatedJob;
use crate::verdict::is_condemned;
use crate::worker_state::{
    has_succeeded, is_alive, is_available, is_preparing, is_survivor, may_hold_state,
};

mod victims;

/// The pods of a job by their roles.
#[derive(Debug)]
pub struct Members<'a> {
    /// Workers by index, at most as many as wanted plus spares: of each index the pod of the
    /// highest attempt that is not terminating. After a scale-down the indices may have holes; a
    /// new worker takes the lowest.
    pub workers: BTreeMap<u32, &'a Pod>,
    /// Pods of the job beyond the wanted number, or beside a later attempt.
    pub surplus: Vec<(&'a Pod, DeleteReason)>,
    /// Number of the newest generation; 0 before the first.
    pub generation: u64,
    /// Number of the newest generation that any pod reports. It is higher than `generation`
    /// if the API server was restored from an older state: agents ignore memberships that are
    /// not newer than theirs.
    pub newest_seen: u64,
    /// Number of the newest generation that is known to have formed; 0 if none has.
    pub(crate) formed: u64,
    /// Fingerprint of the members for which it was raised.
    pub raised_for: String,
    /// Fingerprint of the order of those members; empty if an older operator raised the generation,
    /// which stored no order.
    raised_order: String,
    /// Random nonce of the newest generation.
    pub nonce: String,
    /// Number of workers for which it was raised.
    nodes: u32,
    /// Node ranks of its members that have completed, as the status stores them.
    pub(crate) completed: BTreeSet<u32>,
    /// Most members of the next generation.
    num_places: usize,
    /// Whether pods keep copies of the state.
    keep_copies: bool,
    /// UIDs of pods that must not train any more.
    condemned: BTreeSet<&'a str>,
}

impl<'a> Members<'a> {
    /// Assigns each pod of the job to its role.
    #[must_use]
    pub fn of(job: &ValidatedJob, observed: &'a Observed, now: Timestamp) -> Self {
        let (mut workers, mut surplus) = by_index(observed);
        let membership = observed.status.membership.as_ref();
        let generation = membership.map_or(0, |m| m.generation);
        let newest_seen = newest_seen::newest(observed, generation);
        let holders = Holders::of(job, observed);
        let formed = holders.formed;
        // After a restore the status may describe a generation that the pods have left: its
        // completions are not used.
        let completed = membership.filter(|m| m.generation == newest_seen);
        let completed = completed.map(completed::stored).unwrap_or_default();
        // Once one member has completed, the others are kept: otherwise they would repeat the whole
        // training.
        let mut all = workers.values();
        let is_ending = workers.values().any(|pod| has_succeeded(pod))
            || (!completed.is_empty() && all.any(|pod| is_alive(pod) && is_of(pod, generation)));
        if !is_ending {
            let straggler = straggler(&workers, observed, job.pods_per_replica.max(1));
            let members = victims(
                &survivors(&workers, formed),
                job.replicas,
                straggler,
                holders,
            );
            dismiss(&mut workers, &mut surplus, &members);
            let most = job.replicas.saturating_add(job.spares);
            let others = victims(&workers, most, straggler, holders);
            dismiss(&mut workers, &mut surplus, &others);
        }
        let num_places = num_places(&workers, job, formed);
        let condemned = workers.values().filter(|pod| is_condemned(job, pod, now));
        let condemned = condemned.map(|pod| pod.uid.as_str()).collect();
        Self {
            newest_seen,
            workers,
            surplus,
            generation,
            formed,
            raised_for: membership.map_or_else(String::new, |m| m.members.clone()),
            raised_order: membership.map_or_else(String::new, |m| m.order.clone()),
            nonce: membership.map_or_else(String::new, |m| m.nonce.clone()),
            nodes: membership.map_or(0, |m| m.nodes),
            completed,
            num_places,
            keep_copies: holders.keep_copies,
            condemned,
        }
    }

    /// Whether the container that runs in the pod has a place in the newest generation.
    #[must_use]
    pub fn is_member(&self, pod: &Pod) -> bool {
        is_of(pod, self.generation)
    }

    /// Whether the pod's membership belongs to the generation of the status, and not to one with
    /// the same number before a restore.
    pub(crate) fn was_raised_with(&self, pod: &Pod) -> bool {
        let document = pod.membership.as_ref();
        document.is_some_and(|document| document.members == self.raised_for)
    }

    /// The members of the newest generation whose containers are alive.
    pub(crate) fn that_live(&self) -> Vec<&'a Pod> {
        let workers = self.workers.values().copied();
        workers
            .filter(|pod| self.is_member(pod) && is_alive(pod))
            .collect()
    }

    /// Whether the newest generation can still complete: all its members train or have completed.
    /// Members that the status stores as completed need no pod any more.
    #[must_use]
    pub fn are_whole(&self) -> bool {
        let all = self.workers.values().copied();
        let sound: Vec<&Pod> = all
            .filter(|pod| self.is_member(pod) && (is_alive(pod) || has_succeeded(pod)))
            .collect();
        if self.completed.is_empty() {
            return self.generation > 0 && fingerprint(&sound) == self.raised_for;
        }
        // Each place was issued to one member only, and only to the members for which the
        // generation was raised.
        let sound = sound.into_iter().filter(|pod| self.was_raised_with(pod));
        let places = sound.filter_map(|pod| Some(pod.membership.as_ref()?.node_rank));
        let places: BTreeSet<u32> = places.chain(self.completed.iter().copied()).collect();
        places.len() == self.nodes as usize
    }

    /// Node ranks of the members of the newest generation that have completed, from their pods
    /// or from the status.
    pub(crate) fn all_completed(&self) -> BTreeSet<u32> {
        let members = self.workers.values();
        let seen = members
            .filter(|pod| self.is_member(pod) && self.was_raised_with(pod) && has_succeeded(pod));
        let seen = seen.filter_map(|pod| Some(pod.membership.as_ref()?.node_rank));
        seen.chain(self.completed.iter().copied()).collect()
    }

    /// Number of workers that are Ready.
    #[must_use]
    pub fn num_ready(&self) -> usize {
        self.workers.values().filter(|pod| pod.ready).count()
    }

    /// Whether a pod must not train any more because of a fault of its node.
    #[must_use]
    pub fn is_condemned(&self, pod: &Pod) -> bool {
        self.condemned.contains(pod.uid.as_str())
    }

    /// Adds workers that must not train any more.
    pub(crate) fn condemn(&mut self, workers: &[&'a Pod]) {
        let uids = workers.iter().map(|pod| pod.uid.as_str());
        self.condemned.extend(uids);
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

    /// Number of workers that wait in the lobby beyond those that would form the next generation.
    #[must_use]
    pub fn num_spares(&self) -> usize {
        self.spares().len()
    }

    /// The workers that wait in the lobby beyond those that would form the next generation.
    #[must_use]
    pub(crate) fn spares(&self) -> Vec<&'a Pod> {
        let able = self.able_and_spares();
        able.into_iter().skip(self.num_places).collect()
    }

    /// How many of the spares are Ready.
    #[must_use]
    pub(crate) fn num_ready_spares(&self) -> usize {
        self.spares().iter().filter(|pod| pod.ready).count()
    }

    /// Number of pods of the wanted workers, without spares, whether they are Ready or not.
    #[must_use]
    pub fn num_without_spares(&self, spares: u32) -> usize {
        let beyond = self.workers.len().saturating_sub(self.num_places);
        self.workers.len() - beyond.min(spares as usize)
    }

    /// All workers that could be members, by seniority. Those beyond the number
    /// of places are spares.
    #[must_use]
    pub(crate) fn able_and_spares(&self) -> Vec<&'a Pod> {
        let workers = self.workers.values().copied();
        let mut able: Vec<&Pod> = workers
            .filter(|pod| is_available(pod) || is_survivor(pod))
            .filter(|pod| !pod.unreachable && !self.is_condemned(pod) && !is_preparing(pod))
            .collect();
        able.sort_by_cached_key(|pod| self.seniority(pod));
        able
    }

    /// The workers of the newest generation in node-rank order, while it is being issued. A worker
    /// keeps the place that it has; the others fill the free places in their order. `None` if this
    /// is not the order in which the generation was raised, because the pods are from a stale cache
    /// or a client edited an annotation.
    #[must_use]
    pub fn in_raised_order(&self, able: &[&'a Pod]) -> Option<Vec<&'a Pod>> {
        let placed = self.by_place(able);
        let is_raised = self.raised_order.is_empty() || order(&placed) == self.raised_order;
        is_raised.then_some(placed)
    }

    fn by_place(&self, able: &[&'a Pod]) -> Vec<&'a Pod> {
        let (members, mut others): (Vec<&'a Pod>, Vec<&'a Pod>) =
            able.iter().copied().partition(|pod| self.is_member(pod));
        // Until node rank 0 is issued, it goes to the most senior pod without a place: a new place
        // may have made another pod more senior.
        let leads = |pod: &&Pod| pod.membership.as_ref().is_some_and(|m| m.node_rank == 0);
        let most_senior = || others.iter().copied().min_by_key(|pod| self.seniority(pod));
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

    pub(crate) const fn holders(&self) -> Holders {
        Holders {
            formed: self.formed,
            keep_copies: self.keep_copies,
        }
    }

    /// The order without topology. Survivors come first, in their old order; of two with the same
    /// old place, the one of the newer generation. Workers that keep a copy follow, the newest
    /// state first, a worker with a copy of its own before a holder, whose copy may be some steps
    /// older. Then new workers follow by index. So node rank 0 has the newest state, if one of
    /// them has it. The key of a worker does not change until it gets its next place, unless it
    /// loses its state or an older generation turns out to have formed: what a holder is known to
    /// have is written only while all members train.
    fn seniority(&self, pod: &Pod) -> impl Ord + use<> {
        let copied = self.holders().copy_of(pod);
        let is_held = copied.is_some() && copied != self.holders().own_copy_of(pod);
        let survivor = pod.membership.as_ref().filter(|_| may_hold_state(pod));
        match (survivor, copied) {
            (Some(old), _) => (0, old.node_rank, Reverse(old.generation), false, pod.index),
            (None, Some(copied)) => (1, 0, Reverse(copied), is_held, pod.index),
            // A spare that was a holder may have a copy although that is not known.
            (None, None) => {
                let was_no_holder = copy_pairs::as_holder(pod).is_none();
                (2, 0, Reverse(0), was_no_holder, pod.index)
            }
        }
    }
}

type ByIndex<'a> = (BTreeMap<u32, &'a Pod>, Vec<(&'a Pod, DeleteReason)>);

/// Pods that are not terminating by their index, of each index the highest attempt, and pods beside
/// a later attempt.
pub(crate) fn by_index(observed: &Observed) -> ByIndex<'_> {
    let pods = observed.pods.iter().filter(|pod| pod.ours && !pod.deleting);
    let pods = pods.filter_map(|pod| Some((pod.index?, Reverse(pod.attempt), pod)));
    let mut pods: Vec<(u32, Reverse<u32>, &Pod)> = pods.collect();
    // A map is built sooner from sorted pods than by the insertion of each.
    pods.sort_by_key(|(index, attempt, _)| (*index, *attempt));
    let mut surplus = Vec::new();
    let mut before = None;
    pods.retain(|(index, _, pod)| {
        let is_first = before.replace(*index) != Some(*index);
        if !is_first {
            surplus.push((*pod, DeleteReason::Surplus));
        }
        is_first
    });
    let pods = pods.into_iter().map(|(index, _, pod)| (index, pod));
    (pods.collect(), surplus)
}

/// Whether the container that runs in the pod has a place in this generation.
#[must_use]
pub fn is_of(pod: &Pod, generation: u64) -> bool {
    generation > 0
        && pod.membership.as_ref().is_some_and(|membership| {
            membership.generation == generation
                && membership.action == MembershipAction::Join
                && pod.is_incarnation(&membership.incarnation)
        })
}

/// Fingerprint of a set of workers, independent of their order.
#[must_use]
pub fn fingerprint(workers: &[&Pod]) -> String {
    fingerprint_of(workers.iter().map(|pod| started(pod)).collect())
}

/// Fingerprint of a set of incarnations, independent of their order.
pub(crate) fn fingerprint_of(mut members: Vec<(&str, u32)>) -> String {
    members.sort_by_key(|(uid, _)| *uid);
    membership::fingerprint(members)
}

/// Fingerprint of workers that depends on their order.
#[must_use]
pub fn order(workers: &[&Pod]) -> String {
    membership::fingerprint(workers.iter().map(|pod| started(pod)))
}

/// The parts of the pod's incarnation.
fn started(pod: &Pod) -> (&str, u32) {
    (&pod.uid, pod.container.restarts)
}
