//! Decides which of several failures broke a generation. That one is reported; the others are its
//! consequences.

use std::cmp::Ordering;

use jiff::Timestamp;
use roundhouse_api::{FailureAction, LastFailure};
use roundhouse_contract::{ExitCode, Incarnation};

use crate::draft::Draft;
use crate::generation::members::fingerprint_of;
use crate::generation::stranded;
use crate::observed::Pod;
use crate::verdict::Failure;
use crate::worker_state::end_in_place;

/// A process that died in place in the generation of the newest incident. Its agent answered only
/// after the incident was counted as lost peers.
pub(super) fn late_cause_in_place<'a>(draft: &Draft<'a>) -> Option<Failure<'a>> {
    let counted = draft.status.incidents.last_generation?;
    draft.pods.iter().find_map(|pod| {
        let end = pod.processes.as_ref()?.end.as_ref()?;
        let words = end.message.as_ref()?;
        let failure = Failure::with(draft.job, pod, Some(end));
        (words.generation == counted && !failure.is_peer_failure()).then_some(failure)
    })
}

/// Whether a process died in place in this generation and the job's rules ignore that. Its peers
/// were then lost for a known reason that does not count.
pub(super) fn is_ignored_in_place(generation: u64, failure: &Failure<'_>) -> bool {
    let document = failure.pod.membership.as_ref();
    failure.action == FailureAction::Ignore
        && end_in_place(failure.pod).is_some()
        && document.is_some_and(|document| document.generation == generation)
}

/// Whether a failure ended a member of a generation whose incident is counted, or
/// of an earlier generation.
pub(super) fn is_of_counted_generation(draft: &Draft<'_>, failure: &Failure<'_>) -> bool {
    let (Some(document), Some(end)) = (&failure.pod.membership, failure.end) else {
        return false;
    };
    let counted = draft.status.incidents.last_generation.unwrap_or(0);
    match end.restarts.cmp(&document.incarnation.restarts) {
        Ordering::Less => true,
        Ordering::Equal => document.generation <= counted,
        // The container has ended again since, in the lobby.
        Ordering::Greater => false,
    }
}

/// Whether a failure broke an earlier generation whose incident is counted already: the process has
/// reported no newer generation, and the last reported failure is lost peers.
pub(super) fn is_late_cause(draft: &Draft<'_>, failure: &Failure<'_>) -> bool {
    let words = failure.end.and_then(|end| end.message.as_ref());
    let counted = draft.status.incidents.last_generation;
    let last = draft.status.last_failure.as_ref();
    !failure.is_peer_failure()
        && words.is_some_and(|words| {
            // A process that forms its first generation names none.
            words.generation > 0 && counted.is_some_and(|counted| words.generation <= counted)
        })
        && last.is_some_and(stranded::is_peers_lost)
}

pub(super) fn is_peer_failure(failure: Option<&LastFailure>) -> bool {
    failure.is_some_and(|failure| failure.exit_code == Some(ExitCode::PeerLost.code()))
}

/// The failure that explains the others: the first failure of a member of the newest generation
/// that is not a lost peer.
pub(super) fn first_failure<'a>(
    generation: u64,
    failures: &'a [Failure<'a>],
) -> Option<&'a Failure<'a>> {
    let of_members = failures
        .iter()
        .filter(|failure| is_incident(generation, failure));
    of_members.min_by_key(|failure| rank_as_cause(failure))
}

/// The first failure of a worker for which the newest generation was raised, but which had not
/// received its membership yet. The generation is as broken as if it had.
pub(super) fn first_before_issue<'a>(
    draft: &Draft<'_>,
    failures: &'a [Failure<'a>],
) -> Option<&'a Failure<'a>> {
    if failures.is_empty() {
        return None;
    }
    let mut able: Vec<&Pod> = draft.members.able_and_spares();
    let is_able = |pod: &Pod| able.iter().any(|able| able.uid == draft.worker_uid(pod));
    let failed: Vec<(&'a Failure<'a>, Incarnation)> = failures
        .iter()
        .filter(|failure| failure.action != FailureAction::Ignore && !is_able(failure.pod))
        .filter(|failure| !draft.members.is_member(failure.pod))
        .filter_map(|failure| {
            Some((
                failure,
                draft.incarnation_of(failure.pod, failure.end?.restarts),
            ))
        })
        .collect();
    // The generation was raised for these workers and for the first able ones, as many as were
    // needed to fill it.
    let nodes = draft
        .status
        .membership
        .as_ref()
        .map_or(0, |it| it.nodes as usize);
    able.truncate(nodes.saturating_sub(failed.len()));
    let as_they_were = failed.iter().map(|(_, it)| (&*it.pod_uid, it.restarts));
    let all = able.iter().map(|pod| (&*pod.uid, pod.container.restarts));
    let all = all.chain(as_they_were);
    let was_raised_for = fingerprint_of(all.collect()) == draft.members.raised_for;
    let failed = failed.into_iter().map(|(failure, _)| failure);
    let first = failed.min_by_key(|failure| rank_as_cause(failure));
    first.filter(|_| was_raised_for)
}

/// A key that is smaller for a failure that is more likely the cause.
fn rank_as_cause<'a>(failure: &Failure<'a>) -> (bool, Option<Timestamp>, &'a str) {
    let at = failure.end.and_then(|end| end.finished_at);
    (failure.is_peer_failure(), at, &failure.pod.name)
}

/// Whether a member of this generation failed, and the failure is not ignored.
pub(super) fn is_incident(generation: u64, failure: &Failure<'_>) -> bool {
    let Some(document) = &failure.pod.membership else {
        return false;
    };
    // For an evicted pod the kubelet may not report how its containers ended.
    let ended = match failure.end {
        Some(end) => end.restarts >= document.incarnation.restarts,
        None => failure.is_eviction(),
    };
    document.generation == generation && ended && failure.action != FailureAction::Ignore
}
