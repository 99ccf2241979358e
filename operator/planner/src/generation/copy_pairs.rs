//! Pairs the worker with node rank 0 and a spare on another node, its holder, which keeps second
//! copies of its state (`checkpoint.local.peerCopies`), for workers of one pod.
//!
//! Both pods have a document with the same random identifier, first the holder and then the worker.
//! So a crash between the two writes, and two operators at once, only leave a pair that does not
//! connect, and the next plan completes or replaces it. The holder's document also says of which
//! generation it is known to have a copy: see [`super::copies`].
//!
//! The kubelet sometimes misses a change of an annotation, and shows it up to 90 s later. The pair
//! is not written again for that: training does not wait for it, and the first copy is late.

use roundhouse_contract::membership::fingerprint_of;
use roundhouse_contract::{CopyPair, CopyRole, HeldCopy};

use crate::draft::Draft;
use crate::observed::Pod;
use crate::plan::Action;
use crate::replicas::Replica;
use crate::worker_state::is_available;

/// Writes the documents that differ from what the pods should have.
pub(crate) fn keep(draft: &mut Draft<'_>) {
    if !draft.own_job.has_copy_pairs() {
        return;
    }
    let Some(worker) = rank_zero_worker(draft) else {
        return;
    };
    let holder = holder(worker, &spares(draft));
    let pair = holder.map(|holder| Pair::of(draft, worker, holder));
    let mut changes = match &pair {
        Some(pair) => pair.changes(),
        None => Vec::from_iter(worker.copies.as_ref().map(|_| (worker, None))),
    };
    changes.extend(outdated(draft, worker, pair.as_ref()));
    for (pod, pair) in changes {
        // Only one write of a plan to a pod succeeds.
        if !is_written(draft, &pod.name) {
            draft.actions.push(Action::PairCopies {
                pod: pod.name.clone(),
                resource_version: pod.resource_version.clone(),
                pair,
            });
        }
    }
}

/// A suffix for the message about training, if pods have no other pod that holds their copies.
pub(super) fn warning(draft: &Draft<'_>) -> String {
    if draft.own_job.has_copy_pairs() {
        let worker = rank_zero_worker(draft);
        let is_alone = worker.is_some_and(|it| holder(it, &spares(draft)).is_none());
        let words = "; no spare on another node is Ready to hold second copies";
        return if is_alone { words } else { "" }.to_owned();
    }
    let replicas = draft.replicas.iter().flat_map(|it| it.all.values());
    let documents = replicas
        .flat_map(Replica::present)
        .filter_map(|pod| pod.replica.as_ref());
    let members = documents.filter(|it| !it.holders.is_empty());
    let (held, alone): (Vec<_>, Vec<_>) = members
        .map(|it| it.holders.get(it.pod as usize).copied().flatten())
        .partition(Option::is_some);
    if alone.is_empty() {
        return String::new();
    }
    format!(
        "; {} of {} pods have no pod of their replica on another node that holds second copies: spread the pods \
         of each replica with topologySpreadConstraints",
        alone.len(),
        alone.len() + held.len()
    )
}

/// A pod and the document that it should have.
type Change<'a> = (&'a Pod, Option<CopyPair>);

/// The worker with node rank 0, and the spare that holds copies for it.
struct Pair<'a> {
    worker: &'a Pod,
    holder: &'a Pod,
    /// What the holder's annotation should say.
    document: CopyPair,
}

impl<'a> Pair<'a> {
    fn of(draft: &Draft<'_>, worker: &'a Pod, holder: &'a Pod) -> Self {
        let id = match held_for(holder, worker) {
            Some(known) => known.id.clone(),
            // The plan's nonce may become that of a generation, which a pair must not show.
            None => fingerprint_of(format!("copies {}", draft.observed.nonce).as_bytes()),
        };
        let generation = generation(draft, holder, &id);
        let document = document(id, CopyRole::Holder, worker, generation);
        Self {
            worker,
            holder,
            document,
        }
    }

    /// The worker's document follows that of the holder, which has to know the identifier first.
    fn changes(&self) -> Vec<Change<'a>> {
        let id = &self.document.id;
        let of_worker = document(id.clone(), CopyRole::Worker, self.holder, 0);
        let is_known = held_for(self.holder, self.worker).is_some();
        let first = (self.holder, Some(self.document.clone()));
        let second = is_known.then_some((self.worker, Some(of_worker)));
        let differs = |(pod, document): &Change<'_>| pod.copies != *document;
        let both = [first].into_iter().chain(second);
        both.filter(differs).collect()
    }

    /// Whether the holder is known to have a copy that is at least as new as that of this document.
    fn supersedes(&self, former: &CopyPair) -> bool {
        self.holder.copies.as_ref() == Some(&self.document)
            && former.generation <= self.document.generation
    }
}

/// The newest generation of whose state the holder is known to have a copy, according to the
/// newest report of rank 0, or else to the holder's document.
fn generation(draft: &Draft<'_>, holder: &Pod, id: &str) -> u64 {
    let formed = draft.members.formed;
    let progress = draft.observed.progress.as_ref().map(|it| &it.progress);
    let report = progress.filter(|it| formed > 0 && it.generation == formed);
    let known = as_holder(holder).map_or(0, |document| document.generation);
    let pair = fingerprint_of(id.as_bytes());
    let is_of_pair = |held: &HeldCopy| held.pair == pair && held.pod == holder.name;
    match report.map(|it| it.held_copy.as_ref()) {
        Some(Some(held)) if is_of_pair(held) && held.generation <= formed => held.generation,
        // The holder does not answer, or has nothing.
        Some(None) if known == formed => 0,
        Some(_) | None => known,
    }
}

/// The member with node rank 0 of the newest generation, if it can be reached.
fn rank_zero_worker<'a>(draft: &Draft<'a>) -> Option<&'a Pod> {
    let mut members = draft.members.that_live().into_iter();
    members.find(|pod| {
        let document = pod.membership.as_ref();
        document.is_some_and(|it| it.node_rank == 0) && !pod.unreachable && pod.ip.is_some()
    })
}

/// The spares that are Ready, by seniority.
fn spares<'a>(draft: &Draft<'a>) -> Vec<&'a Pod> {
    let spares = draft.members.spares().into_iter();
    spares
        .filter(|pod| is_available(pod) && !draft.members.is_member(pod))
        .collect()
}

/// The spare on another node that holds the worker's copies already, or else the first one.
fn holder<'a>(worker: &Pod, spares: &[&'a Pod]) -> Option<&'a Pod> {
    let is_elsewhere = |pod: &&&Pod| pod.node.is_some() && pod.node != worker.node;
    let fit = || spares.iter().filter(is_elsewhere).copied();
    let named = worker.copies.as_ref();
    let named = named.filter(|it| it.role == CopyRole::Worker);
    let named = named.and_then(|it| fit().find(|pod| pod.name == it.peer));
    let paired_before = || fit().find(|pod| held_for(pod, worker).is_some());
    let holder = named.or_else(paired_before).or_else(|| fit().next());
    holder.filter(|_| worker.node.is_some())
}

/// Documents of earlier pairs that no longer hold. A former holder keeps its document, which says
/// what it has, until another one has the same or it is a member itself.
fn outdated<'a>(draft: &Draft<'a>, worker: &Pod, pair: Option<&Pair<'_>>) -> Vec<Change<'a>> {
    let workers = draft.members.workers.values().copied();
    let others = workers.filter(|pod| {
        let is_holder = pair.is_some_and(|pair| pair.holder.uid == pod.uid);
        pod.uid != worker.uid && !is_holder
    });
    let is_outdated = |pod: &Pod| match as_holder(pod) {
        Some(document) => {
            draft.members.is_member(pod) || pair.is_some_and(|pair| pair.supersedes(document))
        }
        None => pod.copies.is_some(),
    };
    let outdated = others.filter(|pod| is_outdated(pod));
    outdated.map(|pod| (pod, None)).collect()
}

/// The pod's document, if it is a holder.
pub(crate) fn as_holder(pod: &Pod) -> Option<&CopyPair> {
    let document = pod.copies.as_ref();
    document.filter(|it| it.role == CopyRole::Holder)
}

/// The holder's document, if it is for this worker at its present address.
fn held_for<'a>(holder: &'a Pod, worker: &Pod) -> Option<&'a CopyPair> {
    as_holder(holder).filter(|it| it.peer == worker.name && worker.ip.as_ref() == Some(&it.address))
}

fn document(id: String, role: CopyRole, peer: &Pod, generation: u64) -> CopyPair {
    CopyPair {
        id,
        role,
        peer: peer.name.clone(),
        address: peer.ip.clone().unwrap_or_default(),
        generation,
    }
}

fn is_written(draft: &Draft<'_>, name: &str) -> bool {
    draft.actions.iter().any(|action| match action {
        Action::IssueMembership { pod, .. }
        | Action::PlaceInReplica { pod, .. }
        | Action::PairCopies { pod, .. }
        | Action::EndGroup { pod, .. }
        | Action::LeaveDomain { pod, .. }
        | Action::LabelReplica { pod, .. }
        | Action::DeletePod { pod, .. } => pod == name,
        Action::CreateService
        | Action::CreateNetworkPolicy
        | Action::RepairService { .. }
        | Action::RepairNetworkPolicy { .. }
        | Action::ApplyPodGroup { .. }
        | Action::DeletePodGroup { .. }
        | Action::CreateWorker { .. }
        | Action::DeleteJob { .. } => false,
    })
}
